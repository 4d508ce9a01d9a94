"""The windows in which the gradients of a cell's replicas come home, so that arrivals take bounded memory.

An expert may have a replica on every other rank of the node, and the gradients of all of them arrive at its home: in
fp32 and with the experts of DeepSeek-V3, up to 2.5 GB on one rank. So a home takes them tile by tile. A tile is a range
of one tensor, and the same range of every replica arrives with it, so that the home adds up each element at once. A
window holds the tiles that arrive at the same time.

All ranks of the node compute the same windows, without messages.
"""

from typing import NamedTuple

from relibra.agent.transport import Copy
from relibra.kernels import ALIGNMENT_BYTES


class TensorSize(NamedTuple):
    """The size of one tensor of a replica's gradient."""

    num_elements: int
    element_bytes: int


class Tile(NamedTuple):
    """A range of one gradient tensor of one expert, which arrives from all replicas of the expert."""

    home_rank: int
    home_slot: int
    tensor: int
    """The index among the tensors of the expert that require gradients."""
    begin: int
    """The first element."""
    end: int
    """The element after the last one."""
    copies: tuple[int, ...]
    """The indices of the replicas, ascending: the home adds up their gradients in this order."""


Window = tuple[Tile, ...]


class Leaving(NamedTuple):
    """A part of the gradient of a replica on this rank, which travels in a window."""

    slot: int
    """The redundant slot of the replica."""
    tile: Tile


class OwnWindow(NamedTuple):
    """A window as one rank takes part in it."""

    tiles: Window
    """All tiles, of all homes."""
    leaving: tuple[Leaving, ...]
    """What this rank sends, in the order of the tiles."""


def windows_of(copies: tuple[Copy, ...], sizes: tuple[TensorSize, ...], window_bytes: int) -> tuple[Window, ...]:
    """Return the windows of a cell, in the order in which they travel; no window if nothing arrives anywhere.

    Args:
        copies: the replicas of the cell in one node, in the plan's order.
        sizes: the tensors of an expert that require gradients, with the dtype in which gradients travel.
        window_bytes: the most memory of one rank for the arrivals of a window.

    Raises:
        ValueError: some window would have no room for 16 bytes of each replica.
    """
    if window_bytes < len(copies) * ALIGNMENT_BYTES:
        raise ValueError(f"expected a window of {len(copies) * ALIGNMENT_BYTES} bytes or more, got {window_bytes}")
    of_experts = dict[tuple[int, int], list[int]]()
    for i, copy in enumerate(copies):
        of_experts.setdefault((copy.source_rank, copy.source_slot), []).append(i)
    windows: list[list[Tile]] = []
    number, room_bytes, last_home = 0, window_bytes, None
    for (home_rank, home_slot), indices in sorted(of_experts.items()):
        if home_rank != last_home:
            number, room_bytes, last_home = 0, window_bytes, home_rank
        of_expert = tuple(indices)
        for tensor, (num_elements, element_bytes) in enumerate(sizes):
            begin = 0
            while begin < num_elements:
                end = begin + _that_fit(num_elements - begin, element_bytes, room_bytes // len(of_expert))
                if end == begin:
                    number, room_bytes = number + 1, window_bytes
                    continue
                windows += [[] for _ in range(number + 1 - len(windows))]
                windows[number].append(Tile(home_rank, home_slot, tensor, begin, end, of_expert))
                room_bytes -= padded_bytes((end - begin) * element_bytes) * len(of_expert)
                begin = end
    return tuple(map(tuple, windows))


def windows_on(
    rank: int, copies: tuple[Copy, ...], sizes: tuple[TensorSize, ...], window_bytes: int
) -> tuple[OwnWindow, ...]:
    """Return the windows of `windows_of` as `rank` takes part in them."""
    return tuple(
        OwnWindow(
            window,
            tuple(
                Leaving(copies[i].destination_slot, tile)
                for tile in window
                for i in tile.copies
                if copies[i].destination_rank == rank
            ),
        )
        for window in windows_of(copies, sizes, window_bytes)
    )


def padded_bytes(size_bytes: int) -> int:
    """Return the memory that a gradient takes in a window, so that the next one begins aligned for kernels."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _that_fit(num_elements: int, element_bytes: int, room_bytes: int) -> int:
    """Return how many of the elements fit: all, or so many that the next ones begin aligned for kernels."""
    if padded_bytes(num_elements * element_bytes) <= room_bytes:
        return num_elements
    return room_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES // element_bytes
