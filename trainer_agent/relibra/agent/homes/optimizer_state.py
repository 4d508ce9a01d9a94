"""The tensors that belong to a parameter and must travel with it: the fp32 main copy and the optimizer's moments."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relibra.agent.homes.state_readers import reader_of
from relibra.errors import Unsupported


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
    What the optimizer keeps under such a key depends on its kind; see `state_readers`.

    Args:
        optimizers: the torch optimizers inside.
        shard_of: returns the shard of a parameter on this rank, None if it has none; for a distributed optimizer only.
    """

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], shard_of: ShardOf | None = None) -> None:
        self._readers, self._shard_of = list(map(reader_of, optimizers)), shard_of

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

    def scales_of(self, parameter: Tensor) -> list[Tensor]:
        """Return the scales of these tensors. They travel with all elements on this rank, or not at all."""
        key: Tensor | None = getattr(parameter, "main_param", None)
        if self._shard_of is not None:
            shard = self._shard_of(parameter)
            key = None if shard is None else shard.main
        elif key is None:
            key = parameter
        return [] if key is None else [scale for reader in self._readers for scale in reader.scales(key)]

    def bytes_per_element(self, dtype: torch.dtype) -> int:
        """Return the state that an element of a parameter of this dtype will have after the first step."""
        return max((reader.bytes_per_element(dtype) for reader in self._readers), default=0)

    def check_scales(self, slots: Sequence[Sequence[Tensor]]) -> None:
        """Check that a scale never has to serve elements of two experts.

        Args:
            slots: the parameters of the expert in every home slot of one layer.

        Raises:
            Unsupported: ranks share the state of some parameters, and not in the same way for every expert.
        """
        if self._shard_of is None or not any(reader.has_scales for reader in self._readers):
            return
        for parameters in zip(*slots, strict=True):
            ranges = {self.range_of(parameter) for parameter in parameters}
            if len(ranges) > 1 and not ranges <= {(0, 0), *((0, parameter.numel()) for parameter in parameters)}:
                raise Unsupported(
                    "relibra's agent does not support fp16 and fp8 in exp_avg_dtype, exp_avg_sq_dtype and "
                    "main_params_dtype with these expert-data-parallel ranks, which share the state of some experts, "
                    "each rank with a scale for its part; use torch.bfloat16 or torch.float32, or one "
                    "expert-data-parallel rank (as many expert-parallel ranks as data-parallel ones)"
                )

    def _state(self, key: Tensor) -> list[Tensor]:
        return [tensor for reader in self._readers for tensor in reader.tensors(key)]


class WeightsAlone(OptimizerState):
    """No state at all, also no fp32 main copy: for moves of weights that are not the trained ones."""

    def __init__(self) -> None:
        super().__init__([])

    def tensors_of(self, parameter: Tensor) -> list[Tensor]:
        """Return nothing."""
        return []

    def scales_of(self, parameter: Tensor) -> list[Tensor]:
        """Return nothing."""
        return []
