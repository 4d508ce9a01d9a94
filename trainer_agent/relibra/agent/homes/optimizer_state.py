"""The tensors that belong to a parameter and must travel with it: the fp32 main copy and the optimizer's moments."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of one parameter that the optimizer of this rank updates."""

    start: int
    stop: int
    """The shard is elements `start` to `stop - 1` of the flat parameter."""
    main: Tensor
    """The flat tensor under which the optimizer keeps its state."""
    is_copy: bool
    """Whether `main` has memory of its own. If not, it is a view of the parameter and travels with it."""


ShardOf = Callable[[Tensor], Shard | None]


class OptimizerState:
    """The state tensors in plain, fp32, mixed-precision and distributed megatron optimizers, and in chains of them.

    A parameter's fp32 copy is its `main_param`, set by megatron; the optimizer's state is kept under that copy, or
    under the parameter itself where there is none. A distributed optimizer keeps both for a shard of the parameter.

    Args:
        optimizers: the torch optimizers inside.
        shard_of: returns the shard of a parameter on this rank, None if it has none; for a distributed optimizer only.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], shard_of: ShardOf | None = None) -> None:
        self._optimizers, self._shard_of = list(optimizers), shard_of

    @property
    def is_sharded(self) -> bool:
        """Whether expert-data-parallel ranks own different parts of a parameter's state."""
        return self._shard_of is not None

    def range_of(self, parameter: Tensor) -> tuple[int, int]:
        """Return the range (start, stop) of the flat parameter's elements whose state is on this rank."""
        if self._shard_of is None:
            return 0, parameter.numel()
        shard = self._shard_of(parameter)
        return (0, 0) if shard is None else (shard.start, shard.stop)

    def tensors_of(self, parameter: Tensor) -> list[Tensor]:
        """Return the tensors that travel with the parameter, without the parameter itself, in one order on all ranks.

        Before the first optimizer step there is no state yet, and only the main copy is returned. The tensors of a
        shard are flat. Scalars are left out, because the step counts of all shards of a parameter are equal.
        """
        if self._shard_of is not None:
            shard = self._shard_of(parameter)
            if shard is None:
                return []
            state = [tensor.view(-1) for tensor in self._state(shard.main) if tensor.dim() > 0]
            return [shard.main.view(-1), *state] if shard.is_copy else state
        main = getattr(parameter, "main_param", None)
        if isinstance(main, Tensor):
            return [main, *self._state(main)]
        return self._state(parameter)

    def _state(self, key: Tensor) -> list[Tensor]:
        tensors: list[Tensor] = []
        for optimizer in self._optimizers:
            state = optimizer.state.get(key, {})
            tensors += [state[name] for name in sorted(state) if isinstance(state[name], Tensor)]
        return tensors


class WeightsAlone(OptimizerState):
    """No state at all, also no fp32 main copy: for moves of weights that are not the trained ones."""

    def __init__(self) -> None:
        super().__init__([])

    def tensors_of(self, parameter: Tensor) -> list[Tensor]:
        """Return nothing."""
        return []
