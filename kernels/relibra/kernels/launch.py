"""One kernel launch, its arguments, and the tables that launches carry by value, which mirror structures in `csrc`."""

import ctypes
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

MAX_SEGMENTS, TILE_BYTES = 128, 32768
MAX_TARGETS, MAX_GRADIENTS, TILE_ELEMENTS = 64, 256, 8192


Addresses = ctypes.Array[ctypes.c_void_p]
"""The address of each argument, as the driver takes them. The array keeps the arguments alive."""


class Launch(NamedTuple):
    """A kernel, its grid and its arguments."""

    kernel: str
    num_blocks: tuple[int, int]
    num_threads: int
    arguments: Addresses
    """Valid until the next launch of the same kernel by the same thread, because the driver copies them at once."""


class Arguments(threading.local):
    """The arguments of one kernel, which every launch packs into the same memory. Each thread has memory of its own.

    Args:
        formats: the format of each argument, as in `struct`; that of a structure has those of its fields.
    """

    def __init__(self, *formats: str) -> None:
        layout, offsets = "@", list[int]()
        for code in formats:
            offsets.append(struct.calcsize(layout))
            layout += f"{code}0P"  # the next one begins at a multiple of 8 bytes
        self._struct = struct.Struct(layout)
        self._memory = ctypes.create_string_buffer(self._struct.size)
        begin = ctypes.addressof(self._memory)
        self._addresses: Addresses = (ctypes.c_void_p * len(offsets))(*(begin + offset for offset in offsets))
        self._addresses.values = self._memory  # type: ignore[attr-defined]

    def pack(self, *values: int) -> Addresses:
        """Pack the values of all arguments, a tensor as its address; return the addresses of the arguments."""
        self._struct.pack_into(self._memory, 0, *values)
        return self._addresses


def table_arguments(table: ctypes.Structure, last: int) -> Addresses:
    """Return the arguments of a kernel that takes a table and an int32."""
    values = table, ctypes.c_int32(last)
    addresses: Addresses = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    addresses.values = values  # type: ignore[attr-defined]
    return addresses


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


ROUTING = "PPPPiii"
"""The structure `Routing`: slot_expert_P, before_CE, begin_P, end_P, num_tokens, num_experts, num_slots."""
