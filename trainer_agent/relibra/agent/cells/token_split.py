"""Which copy of its expert every token goes to: what all ranks of an EP group compute alike when the router has run.

A plan says which copies there are. How many tokens each of them gets depends on the tokens that come, of all ranks: one
all-gather of `[E]` counts in every cell that has replicas. Cells without replicas need none.

T tokens of this rank, E experts, R EP ranks, P physical slots.
"""

from collections.abc import Callable

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

    def on_host(counts_RE: NDArray[np.int32]) -> NDArray[np.int32]:
        replicas = table.replicas
        assert replicas is not None
        copies = replicas.home_E, replicas.expert_Y, replicas.rank_Y
        num_ranks, num_experts = counts_RE.shape
        share_P = np.zeros(len(table.slot_expert_P), dtype=np.int32)
        share_P.reshape(num_ranks, -1)[:, : num_experts // num_ranks] = REST
        share_P[replicas.slot_Y] = source_share(counts_RE, *copies, gpus_per_node, ep_rank)
        return share_P

    return token_split(counts_RE, table.slot_expert_P, gpus_per_node, ep_rank, on_host)


class TokenSplit:
    """Splits the tokens of one rank over the copies of their experts.

    Args:
        group: returns the ranks of the EP group, in order of EP rank.
        ep_rank: this rank among them.
        gpus_per_node: how many ranks a node has.
    """

    def __init__(self, group: Callable[[], dist.ProcessGroup], ep_rank: int, gpus_per_node: int) -> None:
        self._group, self._ep_rank, self._gpus_per_node = group, ep_rank, gpus_per_node

    def share_P(self, table: SlotTable, routing_map_TE: Tensor) -> Tensor:
        """Collective over the EP group: return the result of `split` for the tokens that the ranks have."""
        group, counts_E = self._group(), routing_map_TE.sum(dim=0, dtype=torch.int32)
        counts = counts_E.new_empty(dist.get_world_size(group) * len(counts_E))  # gloo gathers into one dimension alone
        dist.all_gather_into_tensor(counts, counts_E, group=group)
        return split(table, counts.view(-1, len(counts_E)), self._ep_rank, self._gpus_per_node)
