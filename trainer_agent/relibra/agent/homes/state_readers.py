"""Where an optimizer keeps the state of one of its parameters: one reader for every kind of optimizer.

A reader tells the kinds apart by their attributes, because Transformer Engine may not be installed.
"""

from typing import Any

import torch
from torch import Tensor

_SCALED = (torch.float16, torch.uint8)
"""The dtypes whose values are multiples of a scale; uint8 stands for fp8. bf16 has the range of fp32 and no scale."""


def reader_of(optimizer: torch.optim.Optimizer) -> "StateReader":
    """Return the reader for an optimizer."""
    if hasattr(optimizer, "param_to_inner_param"):
        return HybridReader(optimizer)
    if hasattr(optimizer, "name_to_dtype_map"):
        return FusedAdamReader(optimizer)
    return StateReader(optimizer)


def adam_bytes(dtype: torch.dtype) -> int:
    """Return the bytes of two fp32 moments, and of an fp32 main weight unless the parameter is fp32 itself."""
    return 8 if dtype.itemsize >= torch.float32.itemsize else 12


class StateReader:
    """Reads `optimizer.state`, which is all that torch's own optimizers keep."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    knows_dtypes = False
    """Whether the reader knows the meaning of state that is not fp32."""

    @property
    def has_scales(self) -> bool:
        """Whether `scales` will return anything once there is state."""
        return False

    def bytes_per_element(self, dtype: torch.dtype) -> int:
        """Return the state that an element of a parameter of this dtype will have, as if this were Adam."""
        return adam_bytes(dtype)

    def tensors(self, key: Tensor) -> list[Tensor]:
        """Return the state of `key`, a parameter of the optimizer, by element or as one number, in order of names."""
        state = self._optimizer.state.get(key, {})
        return [state[name] for name in sorted(state) if isinstance(state[name], Tensor)]

    def scales(self, key: Tensor) -> list[Tensor]:
        """Return the tensors that give the elements of `key` their meaning, all elements together."""
        return []


class FusedAdamReader(StateReader):
    """Reads the state of Transformer Engine's FusedAdam, whose moments and main weights may have 8 or 16 bits.

    Main weights of 16 bits are fp16, or the lower halves of fp32 numbers whose upper halves are the bf16 parameter.
    """

    knows_dtypes = True

    @property
    def has_scales(self) -> bool:
        """Whether moments or main weights are fp16 or fp8."""
        dtypes: dict[str, torch.dtype] = self._optimizer.name_to_dtype_map
        kept = [dtype for name, dtype in dtypes.items() if name != "master_param" or self._optimizer.master_weights]
        return any(dtype in _SCALED for dtype in kept)

    def bytes_per_element(self, dtype: torch.dtype) -> int:
        """See `StateReader`. Main weights that the optimizer does not keep are megatron's, in fp32."""
        dtypes: dict[str, torch.dtype] = self._optimizer.name_to_dtype_map
        moments = dtypes["exp_avg"].itemsize + dtypes["exp_avg_sq"].itemsize
        if not self._optimizer.master_weights:
            return moments + (adam_bytes(dtype) - 8)
        has_remainders = getattr(self._optimizer, "store_param_remainders", False) and dtype == torch.bfloat16
        return moments + (torch.int16 if has_remainders else dtypes["master_param"]).itemsize

    def tensors(self, key: Tensor) -> list[Tensor]:
        """See `StateReader`; of fp8 tensors, return the bytes."""
        return [part for tensor in super().tensors(key) for part in _storage_of(tensor)]

    def scales(self, key: Tensor) -> list[Tensor]:
        """Return the scales of fp16 and fp8 tensors."""
        state, scales = self._optimizer.state.get(key, {}), self._optimizer._scales.get(key, {})
        of_state: list[Tensor] = []
        for name in sorted(scales):
            if self._optimizer.name_to_dtype_map[name] in _SCALED and name in state:
                of_state.append(scales[name])
                of_state += [state[name]._scale_inv, state[name]._quantizer.scale] if _is_fp8(state[name]) else []
        return of_state


def _is_fp8(tensor: Tensor) -> bool:
    return hasattr(tensor, "_scale_inv")


def _storage_of(tensor: Any) -> list[Tensor]:
    """Return the tensors that hold the bits of a tensor.

    An fp8 tensor of Transformer Engine looks like fp32. It may keep a second copy in transposed order, which for a flat
    tensor is the same order.
    """
    if not _is_fp8(tensor):
        return [tensor]
    return [tensor._data] + ([] if tensor._transpose is None else [tensor._transpose])


class HybridReader(StateReader):
    """Reads the state of megatron's HybridDeviceOptimizer, which is in host memory for some parameters.

    The optimizers inside work on an inner parameter: a copy on the host, an fp32 copy on the device, or the parameter
    itself. Copies exist before the first step, so they always travel. Step counts do not: those on the device may be
    counts by group, those on the host are not, and all are equal.
    """

    knows_dtypes = True  # all are fp32

    def bytes_per_element(self, dtype: torch.dtype) -> int:
        """See `StateReader`. The inner parameter travels in any case."""
        return 12

    def tensors(self, key: Tensor) -> list[Tensor]:
        """Return the inner parameter and the moments, in the same order whether they are on the host or the device."""
        inner = self._optimizer.param_to_inner_param.get(key)
        if inner is None:
            return []
        # Between a load and the next step, the state also has main weights of its own. A checkpoint would store them.
        return [inner, *(tensor for tensor in super().tensors(key) if tensor.dim() > 0 and tensor is not inner)]
