"""How many rows the ranks exchange in each cell of a micro-batch, on the host before the first layer of it runs.

A dispatcher must know on the host how many rows it sends and receives. By itself it counts them on the device when the
router has run, gathers the counts of all ranks, and lets the host wait for the device, in every layer and again in its
recomputation. With a replay, every rank knows before the forward what it will send to each slot, and one all-gather and
one copy to the host serve all layers of a micro-batch.

Counts must be exact, because wrong ones would give rows to other experts. So each rank says whether its replay leaves
no row to the router, and told exactly what routers chose in the last step. All ranks see all answers, and if one rank
says no, all dispatch as they do without replay. The agent still compares the told counts with what routers choose
(`CountsAhead.refusal`).

C cells, E experts, P physical slots, R EP ranks, T ranks with parts of the same experts, S slots of a rank.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from relibra.kernels import REST


@dataclass(frozen=True, slots=True, kw_only=True)
class CellShapes:
    """The rows that this rank exchanges in one cell."""

    sent_R: NDArray[np.int64]
    """Rows to every EP rank."""
    received_TRS: Tensor
    """Rows from every rank for each slot of this rank, int64 on the host."""
    received_on_device_TRS: Tensor
    """The same on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchRanks:
    """The ranks between which a dispatcher exchanges rows."""

    group: Callable[[], dist.ProcessGroup]
    """Returns R x T ranks, those with parts of the same experts side by side."""
    num_parts: int
    """T."""
    ep_rank: int


def slot_counts(counts_CE: Tensor, slot_expert_CP: Tensor, share_CP: Tensor) -> Tensor:
    """Return how many rows this rank sends to each slot, int32 `[C, P]`.

    Args:
        counts_CE: int32, how many tokens of this rank go to each expert.
        slot_expert_CP: the expert in each slot, negative for none.
        share_CP: int32, what a slot takes of them; `REST` for a home slot, which takes what its replicas leave.
    """
    expert_CP, is_rest_CP = slot_expert_CP.long().clamp(min=0), share_CP == REST
    taken_CP = share_CP.masked_fill(is_rest_CP, 0)
    left_CE = counts_CE - torch.zeros_like(counts_CE).scatter_add_(1, expert_CP, taken_CP)
    return torch.where(is_rest_CP, left_CE.gather(1, expert_CP), taken_CP)


class ShapesAhead:
    """The shapes of some cells, under way to the host.

    Collective over `ranks`.

    Args:
        counts_CP: the rows that this rank sends to each slot, int32.
        is_exact_C: whether this rank knows them to be right.
        ranks: exchange the rows.
    """

    def __init__(self, counts_CP: Tensor, is_exact_C: Tensor, ranks: DispatchRanks) -> None:
        group, num_cells = ranks.group(), len(counts_CP)
        num_all, num_parts = dist.get_world_size(group), ranks.num_parts
        mine = torch.cat([counts_CP.flatten(), is_exact_C.int()])
        gathered = mine.new_empty(num_all * len(mine))  # gloo gathers into one dimension alone
        dist.all_gather_into_tensor(gathered, mine, group=group)
        counts, is_exact = torch.split(gathered.view(num_all, -1), [counts_CP.numel(), num_cells], dim=1)
        of_ranks = counts.view(num_all // num_parts, num_parts, num_cells, num_all // num_parts, -1)
        received_CTRS = of_ranks[..., ranks.ep_rank, :].permute(2, 1, 0, 3)
        sent_CR = counts_CP.view(num_cells, num_all // num_parts, -1).sum(dim=2)
        self._received_CTRS = received_CTRS.long().contiguous()
        parts = self._received_CTRS.flatten(), sent_CR.flatten(), is_exact.amin(dim=0)
        self._sizes = [len(part) for part in parts]
        self._told = torch.cat(parts).to("cpu", non_blocking=True)
        self._arrival = torch.cuda.Event() if mine.is_cuda else None  # type: ignore[no-untyped-call]
        if self._arrival is not None:
            self._arrival.record()
        self._cells: list[CellShapes | None] | None = None

    def of(self, place: int, num_slots: int | None = None) -> CellShapes | None:
        """Return the shapes of one cell; None if a rank does not know them. The first call waits for the device.

        Args:
            place: of the cell.
            num_slots: the slots of a rank that the dispatcher of the cell knows, without empty ones; None for all.
        """
        if self._cells is None:
            self._cells = self._read()
        shapes = self._cells[place]
        if shapes is None or num_slots is None:
            return shapes
        return CellShapes(
            sent_R=shapes.sent_R,
            received_TRS=shapes.received_TRS[..., :num_slots].contiguous(),
            received_on_device_TRS=shapes.received_on_device_TRS[..., :num_slots].contiguous(),
        )

    def _read(self) -> list[CellShapes | None]:
        if self._arrival is not None:
            self._arrival.synchronize()
        received, sent, is_exact = torch.split(self._told, self._sizes)
        received_CTRS = received.view(self._received_CTRS.shape)
        sent_CR = sent.view(len(is_exact), -1).numpy()
        return [
            CellShapes(
                sent_R=sent_CR[place],
                received_TRS=received_CTRS[place],
                received_on_device_TRS=self._received_CTRS[place],
            )
            if exact
            else None
            for place, exact in enumerate(is_exact.tolist())
        ]
