"""The driver of NeMo-RL reports each sample of an asynchronous rollout where it finishes, while others are generated.

No file changes. `run_sample_multi_turn_rollout` is wrapped in the driver, by which NeMo-RL generates each sample there,
and the `validate` of algorithms, whose samples train nothing. Rollouts in other actors are not reached.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from relibra.plugins.nemo_rl import points
from relibra.plugins.nemo_rl.batch import rows_to_replay
from relibra.plugins.rollout_stream import stream

_ROLLOUTS = "nemo_rl.experience.rollouts"
_ALGORITHMS = ("nemo_rl.algorithms.grpo", "nemo_rl.algorithms.ppo", "nemo_rl.algorithms.distillation")
_IS_WRAPPED = "is_of_relibra"
_VALIDATES: ContextVar[bool] = ContextVar("relibra_nemo_rl_validates", default=False)


def install_in_rollout() -> None:
    """Report samples of this process from now on; a second call does nothing. Call it once the algorithm is loaded.

    Raises:
        Unsupported: this version of NeMo-RL lacks something that the plug-in relies on; the message names it.
    """
    validations = [(algorithm, "validate", _silence) for algorithm in _ALGORITHMS]
    for module, name, wrap in [(_ROLLOUTS, "run_sample_multi_turn_rollout", _reporting), *validations]:
        code = sys.modules.get(module)
        if code is not None and not hasattr(getattr(code, name, None), _IS_WRAPPED):
            points.check(code)
            function = wrap(getattr(code, name))
            setattr(function, _IS_WRAPPED, True)
            setattr(code, name, function)


def _reporting(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    async def run_sample_multi_turn_rollout(*args: Any, **kwargs: Any) -> Any:
        result = await run(*args, **kwargs)
        if not _VALIDATES.get():
            report(result[0]["message_log"])
        return result

    return run_sample_multi_turn_rollout


def _silence(validate: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(validate)
    def silent(*args: Any, **kwargs: Any) -> Any:
        token = _VALIDATES.set(True)
        try:
            return validate(*args, **kwargs)
        finally:
            _VALIDATES.reset(token)

    return silent


def report(message_log: Sequence[dict[str, Any]]) -> None:
    """Report a finished sample.

    Args:
        message_log: its messages, with `token_ids` `[T]` and `routed_experts` `[T, layers, K]`. If one lacks its
            routes, as after a turn that failed, training ranks report the sample.
    """
    routed = [message["routed_experts"] for message in message_log if message.get("routed_experts") is not None]
    if routed and len(routed) == len(message_log):
        tokens = torch.cat([message["token_ids"] for message in message_log])
        stream().report(tokens, torch.cat(routed), rows_to_replay)
