"""AReaL's client of SGLang reports each response where it ends, while others are generated.

The client runs in rollout workers, which find the job in their environment: `balanced` has put it there.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from areal.engine import sglang_remote

from relibra.plugins.areal.response import response_routing
from relibra.plugins.areal.trainer import MODEL_VARIABLE
from relibra.plugins.rollout_job import RolloutJob
from relibra.plugins.rollout_stream import RolloutStream
from relibra.plugins.settings import PluginSettings
from relibra.routing import ModelLayers, SequenceRouting
from relibra.routing.model_config import layers_of_config
from relibra.wire.launch import ATTEMPT_VARIABLE

log = logging.getLogger(__name__)


class ReportingSGLangEngine(sglang_remote.RemoteSGLangEngine):  # type: ignore[misc]
    """AReaL's client; its own methods run unchanged."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        try:
            job = _job()  # here, and not in the event loop of the rollout
        except Exception:
            log.exception("relibra: responses of this rollout are not reported, so passes are planned from history")
            job = None
        self.stream = RolloutStream(
            lambda: job,
            otherwise="the passes over a response that the rollout did not report are planned from history: %s",
        )
        # Workflows get this inner client.
        self._engine.agenerate = self._reporting(self._engine.agenerate)

    def _reporting(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(generate)
        async def agenerate(*args: Any, **kwargs: Any) -> Any:
            response = await generate(*args, **kwargs)
            if response.routed_experts is not None:
                self.stream.report([*response.input_tokens, *response.output_tokens], response, _read)
            return response

        return agenerate


def _read(response: Any, layers: ModelLayers, *, num_tokens: int) -> SequenceRouting:
    return response_routing(response, layers)


def _job() -> RolloutJob:
    """Return the job of this environment."""
    from transformers import AutoConfig

    settings = PluginSettings.read({}, os.environ, default_job="areal", may_pack=False)
    config = AutoConfig.from_pretrained(os.environ[MODEL_VARIABLE], trust_remote_code=True)
    return RolloutJob(
        planner=settings.planner,
        job=settings.job,
        attempt=os.environ[ATTEMPT_VARIABLE],
        layers=layers_of_config(config.get_text_config().to_dict()),
    )
