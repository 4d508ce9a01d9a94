"""One kernel launch, and the tables that launches carry by value. The tables mirror the structures in `csrc`."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from torch import Tensor

MAX_SEGMENTS, TILE_BYTES = 128, 32768
MAX_TARGETS, MAX_GRADIENTS, TILE_ELEMENTS = 64, 256, 8192


class Launch(NamedTuple):
    """A kernel, its grid and its arguments; a tensor in `args` stands for its address."""

    kernel: str
    num_blocks: tuple[int, int]
    num_threads: int
    args: tuple["Tensor | ctypes.Structure | ctypes.c_int32 | ctypes.c_void_p", ...]

    def parameters(self) -> "ctypes.Array[ctypes.c_void_p]":
        """Return the array of argument addresses that the driver takes; the array keeps the arguments alive."""
        values = [ctypes.c_void_p(arg.data_ptr()) if isinstance(arg, Tensor) else arg for arg in self.args]
        parameters = _addresses(len(values))(*map(ctypes.addressof, values))
        parameters.values = values  # type: ignore[attr-defined]
        return parameters


@cache
def _addresses(num: int) -> "type[ctypes.Array[ctypes.c_void_p]]":
    return ctypes.c_void_p * num


Run = Callable[[Launch], None]
"""Runs a launch, on the current stream of a device or in an emulation."""


class Segments(ctypes.Structure):
    """The copies of at most `MAX_SEGMENTS` tensors, as bytes."""

    _fields_ = (
        ("source", ctypes.c_void_p * MAX_SEGMENTS),
        ("target", ctypes.c_void_p * MAX_SEGMENTS),
        ("size_bytes", ctypes.c_int64 * MAX_SEGMENTS),
        ("first_tile", ctypes.c_int32 * (MAX_SEGMENTS + 1)),
        ("num_segments", ctypes.c_int32),
    )


class Gradients(ctypes.Structure):
    """At most `MAX_TARGETS` fp32 tensors, and at most `MAX_GRADIENTS` gradients in all to add to them."""

    _fields_ = (
        ("into", ctypes.c_void_p * MAX_TARGETS),
        ("num_elements", ctypes.c_int64 * MAX_TARGETS),
        ("gradient", ctypes.c_void_p * MAX_GRADIENTS),
        ("first_gradient", ctypes.c_int32 * (MAX_TARGETS + 1)),
        ("first_tile", ctypes.c_int32 * (MAX_TARGETS + 1)),
        ("num_targets", ctypes.c_int32),
    )


class Routing(ctypes.Structure):
    """The slots of `quota_remap` and the range of tokens that each slot takes."""

    _fields_ = (
        ("slot_expert_P", ctypes.c_void_p),
        ("before_CE", ctypes.c_void_p),
        ("begin_P", ctypes.c_void_p),
        ("end_P", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int32),
        ("num_experts", ctypes.c_int32),
        ("num_slots", ctypes.c_int32),
    )
