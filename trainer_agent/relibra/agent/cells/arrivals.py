"""Memory of the transport in which gradients arrive at their homes, for transports that need places.

All ranks lay out a window in the same way, so a sender knows the place of its gradients at the home. Two windows are
under way at a time, each in a part of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from relibra.agent.cells.gradient_windows import Window, padded_bytes
from relibra.agent.experts import Experts
from relibra.agent.transport import ExpertTransport


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

    def rows(self, window: Window, number: int, dtypes: Sequence[torch.dtype]) -> list[list[Tensor]]:
        """Return, for each tile, the places of its replicas' gradients in the memory of the tile's home.

        Args:
            window: the tiles.
            number: of the window in its cell. Windows of one parity share memory.
            dtypes: of the tensors of an expert that require gradients.
        """
        used_bytes, places = Counter[int](), list[list[Tensor]]()
        for tile in window:
            dtype, rows = dtypes[tile.tensor], list[Tensor]()
            size_bytes = (tile.end - tile.begin) * dtype.itemsize
            for _ in tile.copies:
                begin = number % 2 * self._part_bytes + used_bytes[tile.home_rank]
                rows.append(self._memory[begin : begin + size_bytes].view(dtype))
                used_bytes[tile.home_rank] += padded_bytes(size_bytes)
            places.append(rows)
        return places
