"""Memory of the transport in which gradients arrive at their homes, for transports that need places.

All ranks lay out a window in the same way, so a sender knows the place of its gradients at the home. Two windows are
under way at a time, each in a part of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from relibra.agent.cells.gradient_windows import Window, padded_bytes
from relibra.agent.experts import Experts
from relibra.agent.transport import ExpertTransport

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
    """The arriving gradients of one cell at a time. Construction is collective over the ranks of the node.

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
        sizes_bytes = [
            sum(padded_bytes(each.numel() * (dtype or each.dtype).itemsize) for each in expert if each.requires_grad)
            for expert in (of_layer.parameters[0] for of_layer in experts)
        ]
        most_bytes = max(sizes_bytes, default=0) * num_slots * (transport.num_ranks - 1)
        self._part_bytes = padded_bytes(min(most_bytes, window_bytes))
        num_parts = 1 if most_bytes <= window_bytes else 2
        self._memory = transport.memory(num_parts * self._part_bytes, device)
        self._move_out: Callable[[], None] = lambda: None
        self._rooms: dict[tuple[int, int, int, torch.dtype], Room] = {}

    @property
    def size_bytes(self) -> int:
        """The size of the memory."""
        return self._memory.nbytes

    def lend(self, move_out: Callable[[], None]) -> None:
        """Give all memory to a new user, after the last one has moved out.

        Args:
            move_out: called when somebody else needs the memory.
        """
        self._move_out()
        self._move_out = move_out

    def rooms(self, window: Window, number: int, dtypes: Sequence[torch.dtype]) -> list[Room]:
        """Return, for each tile, the places of its replicas' gradients in the memory of the tile's home.

        Args:
            window: the tiles.
            number: of the window in its cell. Windows of one parity share memory.
            dtypes: of the tensors of an expert that require gradients.
        """
        used_bytes, rooms = Counter[int](), list[Room]()
        for tile in window:
            begin_bytes = number % 2 * self._part_bytes + used_bytes[tile.home_rank]
            dtype, num_replicas, num_elements = dtypes[tile.tensor], len(tile.copies), tile.end - tile.begin
            rooms.append(self._room(begin_bytes, num_replicas, num_elements, dtype))
            used_bytes[tile.home_rank] += num_replicas * padded_bytes(num_elements * dtype.itemsize)
        return rooms

    def _room(self, begin_bytes: int, num_replicas: int, num_elements: int, dtype: torch.dtype) -> Room:
        key = begin_bytes, num_replicas, num_elements, dtype
        if key not in self._rooms:
            if len(self._rooms) >= _MOST_ROOMS:
                self._rooms.clear()
            end_bytes = begin_bytes + num_replicas * padded_bytes(num_elements * dtype.itemsize)
            padded_RN = self._memory[begin_bytes:end_bytes].view(dtype).view(num_replicas, -1)
            self._rooms[key] = Room.of(padded_RN[:, :num_elements])
        return self._rooms[key]
