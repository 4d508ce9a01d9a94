"""SkyRL's Megatron reference worker with an agent inside: a job of its own, planned from history; no expert moves."""

import os
from typing import Any

from skyrl.backends.skyrl_train.workers.megatron import megatron_model_wrapper, megatron_worker

from relibra.agent import Phase
from relibra.plugins.attached_job import attach_job
from relibra.plugins.balanced_passes import BalancedPasses
from relibra.plugins.settings import Mode, PluginSettings
from relibra.plugins.skyrl.worker import check_settings
from relibra.routing.model_config import layers_of_config


class BalancedReferenceWorker(megatron_worker.MegatronRefWorkerBase):  # type: ignore[misc]
    """SkyRL's worker; its own methods run unchanged. Each call of `forward` is a step of the reference's job."""

    passes = BalancedPasses()
    """The passes of this worker, with an agent once the model is built."""

    def init_model(self, *args: Any, **kwargs: Any) -> None:
        """Build the model as SkyRL does, and attach an agent to it.

        Raises:
            InvalidInput: a setting is missing or wrong.
            Unsupported: the agent cannot execute the model or a setting of SkyRL.
        """
        super().init_model(*args, **kwargs)
        settings = PluginSettings.read({}, os.environ, default_job="skyrl", may_pack=False)
        if settings.mode is Mode.BALANCE:
            check_settings(self.cfg, self.cfg.ref.megatron_config, self.provider)
        layers = layers_of_config(self.strategy.hf_config.get_text_config().to_dict())
        self.passes = attach_job(settings, layers, self.actor_module, None, beside="reference", moves=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run a pass as SkyRL does, under a plan."""
        if self.passes.agent is None:
            return super().forward(*args, **kwargs)
        self.passes.begin(Phase.RECOMPUTE)
        with self.passes.in_schedules_of(megatron_model_wrapper):
            output = super().forward(*args, **kwargs)
        self.passes.end()
        return output
