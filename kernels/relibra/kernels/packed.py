"""The layout of a packed buffer: tensors one after the other, each padded with zeros to the alignment."""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

ALIGNMENT_BYTES = 16
"""Every tensor in a packed buffer starts at a multiple of this size, so that kernels can move whole vectors."""


def packed_size_bytes(tensors: Sequence[Tensor]) -> int:
    """Return the size of the buffer that holds `tensors`, padding included."""
    return sum(map(_padded_size_bytes, tensors))


def packed_offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Return the first byte of each tensor in the buffer that holds `tensors`."""
    return [0, *accumulate(map(_padded_size_bytes, tensors))][:-1]


def packed_views(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return the packed tensors of `buffer` as views of its memory, hidden from autograd and its version counters.

    Args:
        buffer: uint8, aligned, of at least `packed_size_bytes(like)`.
        like: tensors with the shapes and dtypes of the packed ones.
    """
    return [
        buffer[offset : offset + tensor.numel() * tensor.element_size()].view(tensor.dtype).view(tensor.shape).data
        for tensor, offset in zip(like, packed_offsets(like), strict=True)
    ]


def _padded_size_bytes(tensor: Tensor) -> int:
    # Tensors of symbolic shape have no `nbytes`.
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
