"""Which rank is home to which expert: balance across nodes, which replicas cannot change.

Every layer chooses among three placements, cheapest to reach first:

1. the previous one;
2. its experts split over nodes anew, where experts that stay on a node keep their rank;
3. the better of these two, with the experts inside nodes split over ranks anew.

Placements are judged by the slowest rank *after* replication. A layer takes a later one only where that gains more than
its moves cost, because experts travel with their optimizer state. Where moves have a price, a second split is tried
that stays close to the previous one. Where crossing nodes has a price (`prices.price_crossing`), it counts like tokens
of the slowest rank.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, P groups (nodes or ranks), X experts of a group.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import for_each_layer
from relibra.planning.job import Cluster
from relibra.planning.placement.partition import align, fill, largest_groups, spread
from relibra.planning.placement.swap_search import NUM_STARTS, improve, num_proposals, objective
from relibra.planning.prices import Hysteresis, ReplicaPrice
from relibra.planning.replicas.replicate import FREE, replicate_layer


def reorder(
    load_MLE: NDArray[np.int64],
    previous_LE: NDArray[np.int32],
    identity_LE: NDArray[np.int32],
    cluster: Cluster,
    price: ReplicaPrice = FREE,
    seed: int = 0,
    num_threads: int = 1,
    hysteresis: Hysteresis | None = None,
    crossing_LNE: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int32], str]:
    """Choose the home rank of every expert.

    Args:
        load_MLE: tokens of every expert in every cell.
        previous_LE: the current placement.
        identity_LE: the placement of plain expert parallelism.
        cluster: nodes, ranks and slots.
        price: what replicas cost.
        seed: seed of the search; every layer has a stream of its own.
        num_threads: threads that plan layers; the result is the same for any number.
        hysteresis: what moves must gain; `Hysteresis()` by default.
        crossing_LNE: what it costs to have an expert on a node, in tokens of the largest node; nothing by default.

    Returns:
        The placement, int32 `[L, E]`, and why it was chosen. In every layer, the slowest ranks summed over rows have at
        most the tokens that they have under `identity_LE` without replicas.
    """
    hysteresis = hysteresis or Hysteresis()
    num_layers = len(previous_LE)
    proposals = num_proposals(*load_MLE.shape)

    def reorder_one(layer: int) -> NDArray[np.int32]:
        is_first = np.array_equal(previous_LE[layer], identity_LE[layer])
        search = _LayerSearch(
            load_ME=np.ascontiguousarray(load_MLE[:, layer]),
            cluster=cluster,
            price=price,
            hysteresis=hysteresis.of_first_placement() if is_first else hysteresis,
            seed=seed + layer,
            num_proposals=proposals,
            crossing_NE=None if crossing_LNE is None else crossing_LNE[layer],
        )
        return search.run(previous_LE[layer], identity_LE[layer])

    home_LE = np.stack(for_each_layer(reorder_one, num_layers, num_threads))
    moved_LE = home_LE != previous_LE
    if not moved_LE.any():
        needed = "what moving costs" if hysteresis.tokens_per_move else f"{hysteresis.least:.1%}"
        return home_LE, f"no expert moves, as no layer would gain {needed}"
    return home_LE, f"{moved_LE.sum()} experts move in {moved_LE.any(axis=1).sum()} of {len(home_LE)} layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerSearch:
    """The search for the placement of one layer."""

    load_ME: NDArray[np.int64]
    cluster: Cluster
    price: ReplicaPrice
    hysteresis: Hysteresis
    seed: int
    num_proposals: int
    crossing_NE: NDArray[np.int64] | None

    def run(self, previous_E: NDArray[np.int32], identity_E: NDArray[np.int32]) -> NDArray[np.int32]:
        home_E, tokens = self._choose_nodes(previous_E)
        home_E, tokens = self._choose_ranks(home_E, tokens)
        plain = largest_groups(self.load_ME, identity_E, self.cluster.num_ranks)
        return identity_E if tokens - self._crossing(home_E) > plain else home_E

    def _slowest(self, home_E: NDArray[np.int32]) -> int:
        """Return the tokens of the slowest ranks after replication, plus what replicas and crossing nodes cost."""
        cost_M = replicate_layer(self.load_ME, home_E, self.cluster, self.price).cost_M
        return int(cost_M.sum()) + self._crossing(home_E)

    def _floor(self, home_E: NDArray[np.int32], num_ranks: int) -> int:
        """Return a lower bound on `_slowest`, for replicas that stay inside groups of `num_ranks` ranks."""
        groups_E, num_groups = home_E // np.int32(num_ranks), self.cluster.num_ranks // num_ranks
        return largest_groups(self.load_ME, groups_E, num_groups) // num_ranks + self._crossing(home_E)

    def _crossing(self, home_E: NDArray[np.int32]) -> int:
        if self.crossing_NE is None:
            return 0
        size = self.cluster.gpus_per_node
        return int(self.crossing_NE[home_E // np.int32(size), np.arange(len(home_E))].sum()) // size

    def _net_gain(self, tokens: int, proposed: int, home_E: NDArray[np.int32], proposal_E: NDArray[np.int32]) -> float:
        return self.hysteresis.net_gain(tokens, proposed, int((home_E != proposal_E).sum()))

    def _choose_nodes(self, previous_E: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
        """Split experts over nodes anew if that gains enough; only where replicas can even out the ranks of a node."""
        if self.cluster.num_nodes == 1 or not self.cluster.redundant_slots:
            return previous_E, self._slowest(previous_E)
        best_E = self._move_between_nodes(previous_E, stay_close=False)
        best = self._slowest(best_E)
        # Replicas cannot bring the previous placement below its heaviest nodes. Comparing with that bound settles most
        # layers without replicating them.
        tokens = self._floor(previous_E, self.cluster.gpus_per_node)
        if self._net_gain(tokens, best, previous_E, best_E) <= 0 or self.hysteresis.tokens_per_move:
            tokens = self._slowest(previous_E)
        if self.hysteresis.tokens_per_move:
            close_E = self._move_between_nodes(previous_E, stay_close=True)
            close = self._slowest(close_E)
            if self._net_gain(tokens, close, previous_E, close_E) > self._net_gain(tokens, best, previous_E, best_E):
                best_E, best = close_E, close
        return (best_E, best) if self._net_gain(tokens, best, previous_E, best_E) > 0 else (previous_E, tokens)

    def _choose_ranks(self, home_E: NDArray[np.int32], tokens: int) -> tuple[NDArray[np.int32], int]:
        """Split experts over ranks anew if that gains enough: inside nodes, or over all ranks if there are no slots."""
        num_ranks = self.cluster.gpus_per_node if self.cluster.redundant_slots else self.cluster.num_ranks
        may_cross = num_ranks > self.cluster.gpus_per_node and self.crossing_NE is not None
        if not may_cross and self.hysteresis.net_gain(tokens, self._floor(home_E, num_ranks), 0) <= 0:
            return home_E, tokens
        proposal_E = self._move_inside_groups(home_E, num_ranks)
        proposed = self._slowest(proposal_E)
        is_better = self._net_gain(tokens, proposed, home_E, proposal_E) > 0
        return (proposal_E, proposed) if is_better else (home_E, tokens)

    def _regroup(
        self,
        load_ME: NDArray[np.int64],
        previous_E: NDArray[np.int32],
        num_groups: int,
        num_proposals: int,
        stay_close: bool = False,
        price_PE: NDArray[np.int64] | None = None,
    ) -> NDArray[np.int32]:
        """Split experts over groups anew.

        The search starts from the better of the previous split and a greedy one. With `stay_close` it starts from the
        previous split and stays close to it.
        """

        def improved(group_E: NDArray[np.int32], first_start: int) -> NDArray[np.int32]:
            return improve(load_ME, group_E, num_groups, self.seed, num_proposals, first_start, price_PE)

        if stay_close:
            return improved(previous_E, NUM_STARTS - 1)
        greedy_E = align(spread(load_ME.sum(axis=0), num_groups), previous_E, num_groups)
        start_E = min(previous_E, greedy_E, key=lambda group_E: objective(load_ME, group_E, num_groups, price_PE))
        split_E = improved(start_E, 0)
        return align(split_E, previous_E, num_groups) if price_PE is None else split_E

    def _move_between_nodes(self, previous_E: NDArray[np.int32], stay_close: bool) -> NDArray[np.int32]:
        """Split experts over nodes anew. Experts that stay on a node keep their rank, and newcomers fill the gaps."""
        num_ranks = self.cluster.gpus_per_node
        previous_node_E = previous_E // np.int32(num_ranks)
        node_E = self._regroup(
            self.load_ME,
            previous_node_E,
            self.cluster.num_nodes,
            self.num_proposals,
            stay_close,
            self.crossing_NE,
        )
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
        """Keep every expert in its group of ranks, and split the experts of each group over its ranks anew."""
        moved_E = home_E.copy()
        num_groups, price_PE = self.cluster.num_ranks // num_ranks, None
        if self.crossing_NE is not None and num_groups == 1:
            price_PE = np.repeat(self.crossing_NE // self.cluster.gpus_per_node, self.cluster.gpus_per_node, axis=0)
        for group in range(num_groups):
            first = np.int32(group * num_ranks)
            expert_X = np.flatnonzero(home_E // num_ranks == group)
            load_MX = np.ascontiguousarray(self.load_ME[:, expert_X])
            rank_X = self._regroup(
                load_MX, home_E[expert_X] - first, num_ranks, self.num_proposals // num_groups, price_PE=price_PE
            )
            moved_E[expert_X] = first + rank_X
        return moved_E
