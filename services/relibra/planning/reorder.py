"""Which rank is home to which expert: balance across nodes, which replicas cannot.

Every layer chooses among three placements, cheapest to reach first: the previous one; its experts split over nodes
anew, stayers keeping their rank; the better of these two with ranks inside nodes rearranged. What counts is the slowest
rank *after* replication, and a layer moves on only where that gains `MIN_GAIN`: experts travel with optimizer state.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, P groups (nodes or ranks).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.partition import align, fill, improve, largest_groups, num_proposals, spread
from relibra.planning.per_layer import for_each_layer
from relibra.planning.replicate import replicate_layer
from relibra.planning.topology import Cluster, PlanParams

MIN_GAIN = 0.005
"""Part of a layer's slowest-rank tokens that a costlier placement must save. Reordering all experts takes 1.4 % to
2.1 % of the time of a step (ReLibra), so this pays for about a third of them."""


def reorder(
    load_MLE: NDArray[np.int64],
    previous_LE: NDArray[np.int32],
    identity_LE: NDArray[np.int32],
    cluster: Cluster,
    params: PlanParams,
    num_threads: int = 1,
) -> tuple[NDArray[np.int32], str]:
    """Choose the home rank of every expert, int32 `[L, E]`; return it and why.

    Every layer ends with a slowest rank, summed over rows, that is at most the one of `identity_LE` without replicas.
    The result is the same for any number of threads.
    """
    num_layers = len(previous_LE)
    proposals = num_proposals(*load_MLE.shape)

    def reorder_one(layer: int) -> NDArray[np.int32]:
        search = _LayerSearch(
            load_ME=np.ascontiguousarray(load_MLE[:, layer]),
            cluster=cluster,
            params=params,
            seed=params.seed + layer,
            num_proposals=proposals,
        )
        return search.run(previous_LE[layer], identity_LE[layer])

    home_LE = np.stack(for_each_layer(reorder_one, num_layers, num_threads))
    moved_LE = home_LE != previous_LE
    if not moved_LE.any():
        return home_LE, f"no layer reorders, none would gain {MIN_GAIN:.1%}"
    return home_LE, f"{moved_LE.any(axis=1).sum()} of {len(home_LE)} layers reorder {moved_LE.sum()} experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerSearch:
    """The choice of one layer's placement."""

    load_ME: NDArray[np.int64]
    cluster: Cluster
    params: PlanParams
    seed: int
    num_proposals: int

    def run(self, previous_E: NDArray[np.int32], identity_E: NDArray[np.int32]) -> NDArray[np.int32]:
        home_E, tokens = self._choose_nodes(previous_E)
        home_E, tokens = self._choose_ranks(home_E, tokens)
        return identity_E if tokens > self._largest(identity_E, 1) else home_E

    def _slowest(self, home_E: NDArray[np.int32]) -> int:
        return int(replicate_layer(self.load_ME, home_E, self.cluster, self.params).limit_M.sum())

    def _largest(self, home_E: NDArray[np.int32], num_ranks: int) -> int:
        """Tokens of the largest group of `num_ranks` ranks, summed over rows."""
        return largest_groups(self.load_ME, home_E // np.int32(num_ranks), self.cluster.num_ranks // num_ranks)

    def _choose_nodes(self, previous_E: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
        """Split experts over nodes anew, where replicas can even out the ranks of a node, if that gains enough."""
        if self.cluster.num_nodes == 1 or not self.cluster.redundant_slots:
            return previous_E, self._slowest(previous_E)
        proposal_E = self._move_between_nodes(previous_E)
        proposed = self._slowest(proposal_E)
        # No replicas bring the previous placement below its heaviest nodes: mostly that settles it.
        floor = self._largest(previous_E, self.cluster.gpus_per_node) // self.cluster.gpus_per_node
        if _gains(floor, proposed):
            return proposal_E, proposed
        tokens = self._slowest(previous_E)
        return (proposal_E, proposed) if _gains(tokens, proposed) else (previous_E, tokens)

    def _choose_ranks(self, home_E: NDArray[np.int32], tokens: int) -> tuple[NDArray[np.int32], int]:
        """Rearrange ranks inside nodes, or over all nodes where there are no replicas, if that gains enough."""
        num_ranks = self.cluster.gpus_per_node if self.cluster.redundant_slots else self.cluster.num_ranks
        if not _gains(tokens, self._largest(home_E, num_ranks) // num_ranks):
            return home_E, tokens
        proposal_E = self._move_inside_groups(home_E, num_ranks)
        proposed = self._slowest(proposal_E)
        return (proposal_E, proposed) if _gains(tokens, proposed) else (home_E, tokens)

    def _regroup(
        self, load_ME: NDArray[np.int64], previous_E: NDArray[np.int32], num_groups: int, num_proposals: int
    ) -> NDArray[np.int32]:
        """Split experts over groups, from the better of the previous split and a greedy one."""
        greedy_E = align(spread(load_ME.sum(axis=0), num_groups), previous_E, num_groups)
        start_E = min(previous_E, greedy_E, key=lambda group_E: largest_groups(load_ME, group_E, num_groups))
        return align(improve(load_ME, start_E, num_groups, self.seed, num_proposals), previous_E, num_groups)

    def _move_between_nodes(self, previous_E: NDArray[np.int32]) -> NDArray[np.int32]:
        """Split experts over nodes; who stays on a node stays on its rank, and newcomers fill the gaps."""
        num_ranks = self.cluster.gpus_per_node
        previous_node_E = previous_E // np.int32(num_ranks)
        node_E = self._regroup(self.load_ME, previous_node_E, self.cluster.num_nodes, self.num_proposals)
        home_E, total_E = previous_E.copy(), self.load_ME.sum(axis=0)
        room = len(home_E) // self.cluster.num_ranks
        for node in range(self.cluster.num_nodes):
            first = node * num_ranks
            newcomer_X = np.flatnonzero((node_E == node) & (previous_node_E != node))
            stayer_X = np.flatnonzero((node_E == node) & (previous_node_E == node))
            rank_X = previous_E[stayer_X] - first
            stayer_load_G = np.zeros(num_ranks, dtype=np.int64)
            np.add.at(stayer_load_G, rank_X, total_E[stayer_X])
            room_G = room - np.bincount(rank_X, minlength=num_ranks)
            home_E[newcomer_X] = fill(total_E[newcomer_X], stayer_load_G, room_G) + np.int32(first)
        return home_E

    def _move_inside_groups(self, home_E: NDArray[np.int32], num_ranks: int) -> NDArray[np.int32]:
        """Keep every expert in its group of ranks, and split the group's experts over its ranks anew."""
        moved_E = home_E.copy()
        num_groups = self.cluster.num_ranks // num_ranks
        for group in range(num_groups):
            first = np.int32(group * num_ranks)
            expert_X = np.flatnonzero(home_E // num_ranks == group)
            load_MX = np.ascontiguousarray(self.load_ME[:, expert_X])
            rank_X = self._regroup(load_MX, home_E[expert_X] - first, num_ranks, self.num_proposals // num_groups)
            moved_E[expert_X] = first + rank_X
        return moved_E


def _gains(tokens: int, proposed: int) -> bool:
    return tokens - proposed > MIN_GAIN * tokens
