"""The copies of the trained weights that verl's decoupled trainers keep on the host, and write back by place.

`separate_async` and `fully_async` compute the old log-probabilities of every local step with the weights of the first
one. verl copies the present weights to the host, writes those of the first step into the modules, and puts the present
ones back afterwards. Experts may have moved since a copy was made, so a copy carries the order that it was made in.
"""

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

import torch.distributed as dist

from relibra.plugins.balanced_passes import BalancedPasses

log = logging.getLogger(__name__)

_ORDER = "relibra_order"
"""The key of a copy under which its order stands; verl's own keys name model chunks, and verl looks up no others."""
_of_engines: "WeakSet[HostCopies]" = WeakSet()


class HostCopies:
    """The copies of one engine.

    Args:
        passes: the passes of the engine, with an agent.
        models: the model chunks, as the engine hands them to verl's functions.
        on_device: returns a context in which the parameters are on the device.
    """

    def __init__(
        self, passes: BalancedPasses, models: Any, on_device: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._passes, self._models, self._on_device = passes, models, on_device
        self.are_older_in_use = False
        """Whether weights of an earlier step are in the modules, so that no pass can be planned."""
        self._has_said = False
        _of_engines.add(self)

    def belong_to(self, models: Any) -> bool:
        """Return whether these model chunks are those of the engine, whose agent may have moved experts."""
        return self._models is models and self._passes.agent is not None

    def make(self, copy: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Return a copy that carries its order."""
        assert self._passes.agent is not None
        with self._on_device(), self._passes.agent.copying() as order:
            return copy(self._models) | {_ORDER: (order, self._passes.next_index)}

    def write_back(self, restore: Callable[[Any, Any], None], copied: dict[str, Any]) -> None:
        """Collective over all ranks: write a copy into the modules, each expert where it lives now."""
        assert self._passes.agent is not None
        order, next_index = copied[_ORDER]
        with self._on_device(), self._passes.agent.restoring(order):
            restore(self._models, copied)
        self.are_older_in_use = next_index != self._passes.next_index
        if self.are_older_in_use and not self._has_said and dist.get_rank() == 0:
            self._has_said = True
            log.warning(
                "relibra plans no pass that verl's decoupled trainer runs on weights of an earlier local step: these "
                "passes run as without relibra, each expert where it lives"
            )


def install(megatron_utils: Any) -> None:
    """Wrap verl's two functions in `verl.utils.megatron_utils`, from which its workers import them when they copy."""
    copy, restore = megatron_utils.copy_megatron_model_to_cpu, megatron_utils.restore_megatron_model_from_cpu

    @functools.wraps(copy)
    def copy_megatron_model_to_cpu(models: Any) -> Any:
        copies = _copies_of(models)
        return copy(models) if copies is None else copies.make(copy)

    @functools.wraps(restore)
    def restore_megatron_model_from_cpu(models: Any, cpu_state: Any) -> None:
        copies = _copies_of(models)
        restore(models, cpu_state) if copies is None else copies.write_back(restore, cpu_state)

    megatron_utils.copy_megatron_model_to_cpu = copy_megatron_model_to_cpu
    megatron_utils.restore_megatron_model_from_cpu = restore_megatron_model_from_cpu


def _copies_of(models: Any) -> HostCopies | None:
    return next((copies for copies in _of_engines if copies.belong_to(models)), None)
