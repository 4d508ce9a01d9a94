"""Megatron's saving of checkpoints, as long as experts may move between two saves."""

import functools
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict

log = logging.getLogger(__name__)


class NotStored(LocalNonpersistentObject):  # type: ignore[misc]
    """Wraps an object that a checkpoint does not store and that a load puts beside the weights."""

    key = ""
    """ms-swift before 4.5.3 rewrites the key of every entry, also of those that have none."""


_MADE_FOR_ONE_SAVE = {
    "cached_central_plan": None,
    "cached_local_plan": None,
    "validated_cache_reuse": False,
    "_metadata_cache": None,  # from 0.17 on
}
"""What a strategy keeps of a save for the next one, and the values with which it begins."""

_local_checks: list[Callable[[], None]] = []
"""One for every attachment in this process."""
_is_said = False
_undo = ExitStack()


def plan_every_save(check_local: Callable[[], None]) -> Callable[[], None]:
    """Let every save of a checkpoint plan anew which rank writes what. Return the undoing.

    With `ckpt_assume_constant_structure`, megatron plans the first save only. After a reorder, such a plan fails on the
    ranks that lost an expert; and the writer of nvidia-resiliency-ext, which tells plans apart by names and shapes,
    would store experts under the ids of the ones that were in their slots before. The cache of this writer lives as
    long as its process, so the setting stays off even if no expert has moved since the last save.

    Args:
        check_local: raises if a local checkpoint, which each rank loads for itself, could not be loaded after a
            restart.
    """
    if not _local_checks:
        _undo.callback(_wrap(TorchDistSaveShardedStrategy, "async_save", _planning_anew))
        _undo.callback(_wrap(FullyParallelSaveStrategyWrapper, "apply_saving_parallelization", _distributing_anew))
        _undo.callback(_wrap_local_checkpoints())
    _local_checks.append(check_local)

    def restore() -> None:
        if check_local in _local_checks:
            _local_checks.remove(check_local)
            if not _local_checks:
                _undo.close()

    return restore


def _wrap(owner: type, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    plain = vars(owner)[name]
    setattr(owner, name, functools.wraps(plain)(wrapper(plain)))
    return lambda: setattr(owner, name, plain)


def _planning_anew(plain: Callable[..., Any]) -> Callable[..., Any]:
    def async_save(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted, self.use_cached_ckpt_structure = self.use_cached_ckpt_structure, False
        if wanted:
            _say()
        try:
            return plain(self, *args, **kwargs)
        finally:
            self.use_cached_ckpt_structure = wanted
            vars(self).update({name: value for name, value in _MADE_FOR_ONE_SAVE.items() if name in vars(self)})

    return async_save


def _distributing_anew(plain: Callable[..., Any]) -> Callable[..., Any]:
    def apply_saving_parallelization(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.cached_distribution = None
        try:
            return plain(self, *args, **kwargs)
        finally:
            self.cached_distribution = None

    return apply_saving_parallelization


def _wrap_local_checkpoints() -> Callable[[], None]:
    plain = vars(MCoreTensorAwareStateDict)["from_state_dict"]

    @functools.wraps(plain.__func__)
    def from_state_dict(cls: Any, *args: Any, **kwargs: Any) -> Any:
        for check_local in _local_checks:
            check_local()
        return plain.__func__(cls, *args, **kwargs)

    MCoreTensorAwareStateDict.from_state_dict = classmethod(from_state_dict)

    def restore() -> None:
        MCoreTensorAwareStateDict.from_state_dict = plain

    return restore


def _say() -> None:
    global _is_said
    if not _is_said and dist.get_rank() == 0:
        log.warning(
            "ckpt_assume_constant_structure has no effect while relibra's agent is attached: experts move between "
            "saves, so every save is planned anew, which takes the time of the first save"
        )
    _is_said = True
