"""Checks of the operations' arguments, made before anything is read or written; each raises `InvalidInput` by name.

The values in tensors are checked on the CPU only, because reading them on a device would wait for the device. On a
device a slot whose expert does not exist takes no tokens, in the kernel and in the reference, and nothing out of bounds
is accessed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from relibra.errors import InvalidInput
from relibra.kernels.packed import packed_size_bytes

_SLOT_DTYPES = (torch.int32, torch.int64)
_GRADIENT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def routing(probs_TE: Tensor, routing_map_TE: Tensor) -> None:
    """Require floating probabilities and a bool map, both [T, E]."""
    if probs_TE.dim() != 2 or not probs_TE.is_floating_point() or probs_TE.element_size() == 1:
        raise InvalidInput.of("probs_TE", expected="[T, E], floating, of at least 16 bits", got=_describe(probs_TE))
    if routing_map_TE.dtype != torch.bool or routing_map_TE.shape != probs_TE.shape:
        raise InvalidInput.of("routing_map_TE", expected=f"bool {list(probs_TE.shape)}", got=_describe(routing_map_TE))
    _one_device("routing_map_TE", probs_TE, [routing_map_TE])


def slots(probs_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor) -> None:
    """Require integer shares, and experts 0 to E-1 or EMPTY."""
    for name, values_P in (("slot_expert_P", slot_expert_P), ("share_P", share_P)):
        if values_P.dtype not in _SLOT_DTYPES or values_P.shape != slot_expert_P.shape or values_P.dim() != 1:
            raise InvalidInput.of(name, expected=f"int32 or int64 [{slot_expert_P.shape[0]}]", got=_describe(values_P))
    _one_device("slot_expert_P", probs_TE, [slot_expert_P])
    _one_device("share_P", probs_TE, [share_P])
    if slot_expert_P.is_cpu and slot_expert_P.numel():
        num_experts, (least, most) = probs_TE.shape[1], map(int, slot_expert_P.aminmax())
        if least < -1 or most >= num_experts:
            got = most if most >= num_experts else least
            raise InvalidInput.of("slot_expert_P", expected=f"experts 0 to {num_experts - 1}, or -1 (empty)", got=got)


def packed_buffer(buffer: Tensor, tensors: Sequence[Tensor]) -> None:
    """Require a flat uint8 buffer of exactly the size that `tensors` take when packed."""
    if buffer.dtype != torch.uint8 or buffer.dim() != 1:
        raise InvalidInput.of("buffer", expected="uint8 [size_bytes]", got=_describe(buffer))
    size_bytes = packed_size_bytes(tensors)
    if buffer.numel() != size_bytes:
        raise InvalidInput.of("buffer", expected=f"{size_bytes} bytes for {len(tensors)} tensors", got=buffer.numel())


def grad_accumulate(into: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Require fp32 targets, and for each target gradients that have its shape and share one dtype."""
    if len(gradients) != len(into):
        raise InvalidInput.of("gradients", expected=f"{len(into)} lists, one for each target", got=len(gradients))
    for i, (target, added) in enumerate(zip(into, gradients, strict=True)):
        if target.dtype != torch.float32:
            raise InvalidInput.of(f"into[{i}]", expected="torch.float32", got=target.dtype)
        dtype = added[0].dtype if added else torch.float32
        for j, gradient in enumerate(added):
            _gradients(f"gradients[{i}][{j}]", gradient, dtype, target.shape)
        _one_device(f"gradients[{i}]", into[0], [target, *added])


def _gradients(name: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int]) -> None:
    if dtype not in _GRADIENT_DTYPES:
        raise InvalidInput.of(name, expected=" or ".join(map(str, _GRADIENT_DTYPES)), got=dtype)
    if tensor.dtype != dtype or tensor.shape != shape:
        raise InvalidInput.of(name, expected=f"{dtype} {list(shape)}", got=_describe(tensor))


def _one_device(name: str, first: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        if tensor.device != first.device:
            raise InvalidInput.of(name, expected=f"on {first.device}", got=tensor.device)


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
