"""The tensors that belong to a parameter and must travel with it: the fp32 main copy and the optimizer's moments."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of one parameter that this rank's optimizer updates."""

    start: int
    stop: int
    """Elements `start` to `stop - 1` of the flat parameter."""
    main: Tensor
    """Flat; what the optimizer keeps its state under."""
    is_copy: bool
    """`main` has memory of its own; otherwise it is a view of the parameter and travels with it."""


ShardOf = Callable[[Tensor], Shard | None]


class OptimizerState:
    """Finds them in plain, fp32, mixed-precision and distributed megatron optimizers, and in chains of them.

    A parameter's fp32 copy is its `main_param`, set by megatron; the optimizer's state is kept under that copy, or
    under the parameter itself where there is none. A distributed optimizer keeps both for a shard of the parameter.

    Args:
        optimizers: the torch optimizers inside.
        shard_of: the shard of a parameter on this rank, None where it has none; for a distributed optimizer only.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], shard_of: ShardOf | None = None) -> None:
        self._optimizers, self._shard_of = list(optimizers), shard_of

    @property
    def is_sharded(self) -> bool:
        """Whether expert-data-parallel ranks own different parts of a parameter's state."""
        return self._shard_of is not None

    def range_of(self, parameter: Tensor) -> tuple[int, int]:
        """Return the elements of the flat parameter whose state is on this rank, as (start, stop)."""
        if self._shard_of is None:
            return 0, parameter.numel()
        shard = self._shard_of(parameter)
        return (0, 0) if shard is None else (shard.start, shard.stop)

    def tensors_of(self, parameter: Tensor) -> list[Tensor]:
        """Return the tensors beside the parameter itself, in an order equal on all ranks.

        Before the first optimizer step there is no state yet, and only the main copy is returned. Those of a shard are
        flat, and without the scalars: every parameter's shards count their steps alike.
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
