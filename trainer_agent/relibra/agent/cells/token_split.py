"""Which copy of its expert every token goes to: what all ranks of an EP group compute alike when the router has run.

A plan says which copies there are. How many tokens each of them gets depends on the tokens that come, of all ranks: one
all-gather of `[E]` counts in every cell that has replicas, or one for all cells of a micro-batch whose routing is known
before (`counts_ahead`). Cells without replicas need none.

C cells, E experts, R EP ranks, P physical slots.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.cells import SlotTable
from relibra.kernels import REST, token_split
from relibra.planning.split import source_share


def split(table: SlotTable, counts_RE: Tensor, ep_rank: int, gpus_per_node: int) -> Tensor:
    """Return the most tokens of one rank that each slot of a cell takes, int32; `REST` for a home slot.

    Args:
        table: the cell, with replicas.
        counts_RE: int32, how many tokens each rank of the EP group routes to each expert.
        ep_rank: the rank.
        gpus_per_node: how many ranks a node has.
    """
    on_host = partial(_split_on_host, table, ep_rank, gpus_per_node)
    return token_split(counts_RE, table.slot_expert_P, gpus_per_node, ep_rank, on_host)


def _split_on_host(
    table: SlotTable, ep_rank: int, gpus_per_node: int, counts_RE: NDArray[np.int32]
) -> NDArray[np.int32]:
    replicas = table.replicas
    assert replicas is not None
    copies = replicas.home_E, replicas.expert_Y, replicas.rank_Y
    num_ranks, num_experts = counts_RE.shape
    share_P = np.zeros(len(table.slot_expert_P), dtype=np.int32)
    share_P.reshape(num_ranks, -1)[:, : num_experts // num_ranks] = REST
    share_P[replicas.slot_Y] = source_share(counts_RE, *copies, gpus_per_node, ep_rank)
    return share_P


class GatheredAhead:
    """The counts of some cells of all ranks, under way.

    Args:
        shape_CE: of the counts of a rank.
        counts: where they arrive.
        work: the collective that brings them.
    """

    def __init__(self, shape_CE: torch.Size, counts: Tensor, work: dist.Work) -> None:
        self._shape_CE, self._counts, self._work = shape_CE, counts, work
        self._cells: Sequence[Tensor] | None = None

    def of(self, place: int) -> Tensor:
        """Return the counts `[R, E]` of one cell when they have arrived. On a GPU, only its current stream waits."""
        if self._cells is None:
            self._work.wait()
            self._cells = self._counts.view(-1, *self._shape_CE).transpose(0, 1).contiguous().unbind()
        return self._cells[place]


class TokenSplit:
    """Splits the tokens of one rank over the copies of their experts.

    Args:
        group: returns the ranks of the EP group, in order of EP rank.
        ep_rank: this rank among them.
        gpus_per_node: how many ranks a node has.
    """

    def __init__(self, group: Callable[[], dist.ProcessGroup], ep_rank: int, gpus_per_node: int) -> None:
        self._group, self._ep_rank, self._gpus_per_node = group, ep_rank, gpus_per_node

    def start(self, mine: Tensor) -> tuple[Tensor, dist.Work]:
        """Collective over the EP group: begin to gather counts, int32 in one dimension; return where they arrive."""
        group = self._group()
        counts = mine.new_empty(dist.get_world_size(group) * mine.shape[0])  # gloo gathers into one dimension alone
        return counts, dist.all_gather_into_tensor(counts, mine, group=group, async_op=True)

    def gather(self, counts_E: Tensor) -> Tensor:
        """Collective over the EP group: return the counts of one cell of all ranks, int32 `[R, E]`."""
        counts, work = self.start(counts_E)
        work.wait()
        return counts.view(-1, counts_E.shape[0])

    def gather_ahead(self, counts_CE: Tensor) -> GatheredAhead:
        """Collective over the EP group: begin to gather the counts of some cells."""
        return GatheredAhead(counts_CE.shape, *self.start(counts_CE.flatten()))

    def share_P(self, table: SlotTable, counts_RE: Tensor) -> Tensor:
        """Return the result of `split` for this rank."""
        return split(table, counts_RE, self._ep_rank, self._gpus_per_node)
