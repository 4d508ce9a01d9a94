"""The memory in which gradients arrive at their homes.

If the transport needs places, all ranks lay out a window in the same way, so a sender knows the place of its gradients
at the home. Two windows are under way at a time, each in a part of its own.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relibra.agent.cells.gradient_windows import Tile, Window, padded_bytes
from relibra.agent.experts import Experts, require_gradients
from relibra.agent.transport import ExpertTransport

NUM_PARTS = 2
_MOST_ROOMS = 1024
"""Rooms that are remembered. There are few unless the cells of a step differ very much."""


class Room(NamedTuple):
    """Memory for the gradients of one tile."""

    gradients_RN: Tensor
    """All of them: R replicas in the order of the tile, N elements."""
    rows: Sequence[Tensor]
    """Each of them, contiguous."""

    @classmethod
    def of(cls, gradients_RN: Tensor) -> "Room":
        """Return the room in this memory."""
        return cls(gradients_RN, gradients_RN.unbind())


class Arrivals:
    """The memory for the arriving gradients of one cell at a time.

    Memory of the transport stays as it is, and construction is collective over the ranks of the node. Otherwise a rank
    allocates what its own arrivals need, and keeps it for the cells that follow until `release`.

    Args:
        transport: between the ranks of the node.
        experts: the experts of this rank's layers.
        num_slots: redundant slots of a rank.
        dtype: the dtype of all gradients; None if each gradient has the dtype of its parameter.
        device: where the experts are.
        window_bytes: the most memory of one rank for a window.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        experts: Iterable[Experts],
        num_slots: int,
        dtype: torch.dtype | None,
        device: torch.device,
        window_bytes: int,
    ) -> None:
        self.window_bytes = window_bytes
        self._rank, self._needs_places, self._device = transport.rank, transport.needs_places, device
        self._parts = [_memory(0, device)] * NUM_PARTS
        self._rooms: dict[tuple[int, int, int, int, torch.dtype], Room] = {}
        self.version = 0
        """Counts up whenever the places that `places` returned are not to be used any more."""
        if transport.needs_places:
            sizes_bytes = [
                sum(
                    padded_bytes(parameter.numel() * (dtype or parameter.dtype).itemsize)
                    for parameter in require_gradients(of.parameters[0])
                )
                for of in experts
            ]
            most_bytes = max(sizes_bytes, default=0) * num_slots * (transport.num_ranks - 1)
            part_bytes = padded_bytes(min(most_bytes, window_bytes))
            num_parts = 1 if most_bytes <= window_bytes else NUM_PARTS
            self._parts = list(transport.memory(num_parts * part_bytes, device).view(num_parts, part_bytes))

    @property
    def size_bytes(self) -> int:
        """The size of the memory."""
        return sum(part.nbytes for part in self._parts)

    def places(self, windows: Sequence[Window], dtypes: Sequence[torch.dtype]) -> list[list[tuple[Tile, Room]]]:
        """Return the places of replicas' gradients in the memory of their homes, for each window and tile.

        The tiles of all homes have places if the transport needs them, else only those of this home.

        Args:
            windows: the windows of a cell, in order. Those of one parity share memory.
            dtypes: of the tensors of an expert that require gradients.
        """
        begins_bytes, needed_bytes = list[list[tuple[Tile, int]]](), [0] * NUM_PARTS
        for number, window in enumerate(windows):
            begins, used_bytes = list[tuple[Tile, int]](), Counter[int]()
            for tile in window:
                if self._needs_places or tile.home_rank == self._rank:
                    begins.append((tile, used_bytes[tile.home_rank]))
                    used_bytes[tile.home_rank] += _size_bytes(tile, dtypes)
            needed_bytes[number % NUM_PARTS] = max(needed_bytes[number % NUM_PARTS], used_bytes[self._rank])
            begins_bytes.append(begins)
        self._grow(needed_bytes)
        return [
            [
                (tile, self._room(number % NUM_PARTS, begin_bytes, tile, dtypes[tile.tensor]))
                for tile, begin_bytes in begins
            ]
            for number, begins in enumerate(begins_bytes)
        ]

    def release(self) -> None:
        """Free the memory, unless it is the transport's, while nothing is under way."""
        if not self._needs_places:
            self._replace([0] * NUM_PARTS)

    def _grow(self, needed_bytes: Sequence[int]) -> None:
        if not self._needs_places and any(
            needed > part.nbytes for needed, part in zip(needed_bytes, self._parts, strict=True)
        ):
            self._replace([max(needed, part.nbytes) for needed, part in zip(needed_bytes, self._parts, strict=True)])

    def _replace(self, sizes_bytes: Sequence[int]) -> None:
        self._rooms.clear()
        self._parts.clear()  # before as much memory again
        self._parts += [_memory(size_bytes, self._device) for size_bytes in sizes_bytes]
        self.version += 1

    def _room(self, part: int, begin_bytes: int, tile: Tile, dtype: torch.dtype) -> Room:
        num_replicas, num_elements = len(tile.copies), tile.end - tile.begin
        key = part, begin_bytes, num_replicas, num_elements, dtype
        if key not in self._rooms:
            if len(self._rooms) >= _MOST_ROOMS:
                self._rooms.clear()
            end_bytes = begin_bytes + num_replicas * padded_bytes(num_elements * dtype.itemsize)
            padded_RN = self._parts[part][begin_bytes:end_bytes].view(dtype).view(num_replicas, -1)
            self._rooms[key] = Room.of(padded_RN[:, :num_elements])
        return self._rooms[key]


def _size_bytes(tile: Tile, dtypes: Sequence[torch.dtype]) -> int:
    return len(tile.copies) * padded_bytes((tile.end - tile.begin) * dtypes[tile.tensor].itemsize)


def _memory(size_bytes: int, device: torch.device) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)
