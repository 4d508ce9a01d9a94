"""Which rank is home to which expert: balance across nodes, which replicas cannot change.

Every layer chooses among three placements, cheapest to reach first:

1. the previous one;
2. its experts split over nodes anew, where experts that stay on a node keep their rank;
3. the better of these two, with the experts inside nodes split over ranks anew.

Placements are judged by the slowest rank *after* replication. A layer takes a later one only where that gains more than
its moves cost, because experts travel with their optimizer state. Where moves have a price, a second split is tried
that stays close to the previous one. Where dispatch has a price (`traffic`), the copies that the busiest adapter sends
or receives count like tokens of the slowest rank.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, P groups (nodes or ranks), X experts of a group.
"""

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import for_each_layer
from relibra.planning.job import Cluster
from relibra.planning.placement.objective import Moves, objective
from relibra.planning.placement.partition import align, fill, largest_groups, spread
from relibra.planning.placement.swap_search import NUM_STARTS, improve, num_proposals
from relibra.planning.prices import Hysteresis, ReplicaPrice
from relibra.planning.replicas.layer_replicas import KnownReplicas, LayerReplicas
from relibra.planning.replicas.replicate import FREE, replicate_layer
from relibra.planning.traffic import GroupTraffic, LayerTraffic, Traffic

_DRAFTS_PER_PLACEMENT = 10
"""How many drafts try as much as one placement."""


def reorder(
    load_MLE: NDArray[np.int64],
    previous_LE: NDArray[np.int32],
    identity_LE: NDArray[np.int32],
    cluster: Cluster,
    price: ReplicaPrice = FREE,
    seed: int = 0,
    num_threads: int = 1,
    hysteresis: Hysteresis | None = None,
    traffic: Traffic | None = None,
    known: KnownReplicas | None = None,
    is_draft: bool = False,
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
        traffic: where token copies come from and what dispatch costs; nothing by default.
        known: keeps the replicas of the chosen placement, for `replicate`.
        is_draft: try less, and leave experts on any rank of their node where replicas even out its ranks.

    Returns:
        The placement, int32 `[L, E]`, and why it was chosen. In every layer, the slowest ranks summed over rows have at
        most the tokens that they have under `identity_LE` without replicas, dispatch included where it has a price.
    """
    hysteresis = hysteresis or Hysteresis()
    num_rows, num_layers, num_experts = load_MLE.shape
    proposals = num_proposals(num_rows, num_layers, num_experts, traffic is not None)

    later_L = (previous_LE != identity_LE).any(axis=1)

    def reorder_one(layer: int) -> tuple[NDArray[np.int32], int]:
        later = hysteresis if traffic is None else hysteresis.of_less_traffic()
        search = _LayerSearch(
            load_ME=np.ascontiguousarray(load_MLE[:, layer]),
            cluster=cluster,
            price=price,
            hysteresis=later if later_L[layer] else hysteresis.of_first_placement(),
            seed=seed + layer,
            num_proposals=proposals // _DRAFTS_PER_PLACEMENT if is_draft else proposals,
            traffic=None if traffic is None else traffic.layer(layer),
            counts_moves=traffic is not None and bool(later_L[layer]),
            is_draft=is_draft,
        )
        home_E, saved = search.run(previous_LE[layer], identity_LE[layer])
        replicas = search.judged.get(home_E.tobytes())
        if known is not None and replicas is not None:
            known.keep(layer, home_E, replicas)
        return home_E, saved

    each_home_E, saved = zip(*for_each_layer(reorder_one, num_layers, num_threads), strict=True)
    home_LE = np.stack(each_home_E)
    why = "no layer would gain " + ("what moving costs" if hysteresis.tokens_per_move else f"{hysteresis.least:.1%}")
    if traffic is not None and hysteresis.loses_in_waves(
        sum(np.array(saved)[later_L].tolist()), home_LE[later_L], previous_LE[later_L], cluster
    ):
        home_LE = np.where(later_L[:, None], previous_LE, home_LE)
        why = "all layers together would not gain what it costs to carry the moves out"
    moved_LE = home_LE != previous_LE
    if not moved_LE.any():
        return home_LE, f"no expert moves, as {why}"
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
    traffic: LayerTraffic | None
    counts_moves: bool
    """Whether the search itself counts what moves cost, so that it moves those experts that gain most for it. A first
    placement lasts: its search looks for the best one."""
    is_draft: bool
    judged: dict[bytes, LayerReplicas] = field(default_factory=dict)
    """The replicas of every placement that was judged, by the bytes of its home ranks."""

    def run(self, previous_E: NDArray[np.int32], identity_E: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
        """Return the home of every expert, and what it saves in tokens of slowest ranks."""
        home_E, tokens, of_nodes = self._choose_nodes(previous_E)
        home_E, tokens, of_ranks = self._choose_ranks(home_E, tokens)
        plain = self._plain(identity_E)
        if tokens > plain:
            return identity_E, of_nodes + of_ranks + tokens - plain
        return home_E, of_nodes + of_ranks

    def _plain(self, home_E: NDArray[np.int32]) -> int:
        """Return the tokens of the slowest ranks without replicas, plus what dispatch costs."""
        if self.traffic is None:
            return largest_groups(self.load_ME, home_E, self.cluster.num_ranks)
        cluster = replace(self.cluster, redundant_slots=0)
        return int(replicate_layer(self.load_ME, home_E, cluster, FREE, self.traffic).cost_M.sum())

    def _slowest(self, home_E: NDArray[np.int32]) -> int:
        """Return the tokens of the slowest ranks after replication, plus what replicas and dispatch cost."""
        replicas = replicate_layer(self.load_ME, home_E, self.cluster, self.price, self.traffic)
        self.judged[home_E.tobytes()] = replicas
        return int(replicas.cost_M.sum())

    def _floor(self, home_E: NDArray[np.int32], num_ranks: int) -> int:
        """Return a lower bound on `_slowest`, for replicas and experts that stay inside groups of `num_ranks` ranks."""
        groups_E, num_groups = home_E // np.int32(num_ranks), self.cluster.num_ranks // num_ranks
        is_node = num_ranks == self.cluster.gpus_per_node
        traffic = self.traffic.of_nodes() if self.traffic is not None and is_node else None
        return objective(self.load_ME, groups_E, num_groups, traffic) // num_ranks

    def _net_gain(self, tokens: int, proposed: int, home_E: NDArray[np.int32], proposal_E: NDArray[np.int32]) -> float:
        return self.hysteresis.net_gain(tokens, proposed, int((home_E != proposal_E).sum()))

    def _choose_nodes(self, previous_E: NDArray[np.int32]) -> tuple[NDArray[np.int32], int, int]:
        """Split experts over nodes anew if that gains enough; only where replicas can even out the ranks of a node.

        Returns the home of every expert, the tokens of the slowest ranks, and what moves save of them.
        """
        if self.cluster.num_nodes == 1 or not self.cluster.redundant_slots:
            return previous_E, self._slowest(previous_E), 0
        best_E = self._move_between_nodes(previous_E, stay_close=False)
        best = self._slowest(best_E)
        # Replicas cannot bring the previous placement below its heaviest nodes. Comparing with that bound settles most
        # layers without replicating them.
        tokens = self._floor(previous_E, self.cluster.gpus_per_node)
        if self._net_gain(tokens, best, previous_E, best_E) <= 0 or self.hysteresis.tokens_per_move:
            tokens = self._slowest(previous_E)
        if self.hysteresis.tokens_per_move and not self.counts_moves:
            close_E = self._move_between_nodes(previous_E, stay_close=True)
            close = self._slowest(close_E)
            if self._net_gain(tokens, close, previous_E, close_E) > self._net_gain(tokens, best, previous_E, best_E):
                best_E, best = close_E, close
        if self._net_gain(tokens, best, previous_E, best_E) <= 0:
            return previous_E, tokens, 0
        return best_E, best, tokens - best

    def _choose_ranks(self, home_E: NDArray[np.int32], tokens: int) -> tuple[NDArray[np.int32], int, int]:
        """Split experts over ranks anew if that gains enough: inside nodes, or over all ranks if there are no slots.

        Returns the same as `_choose_nodes`.
        """
        num_ranks = self.cluster.gpus_per_node if self.cluster.redundant_slots else self.cluster.num_ranks
        is_done = self.is_draft and self.cluster.num_nodes > 1 and self.cluster.redundant_slots
        if is_done or self.hysteresis.net_gain(tokens, self._floor(home_E, num_ranks), 0) <= 0:
            return home_E, tokens, 0
        proposal_E = self._move_inside_groups(home_E, num_ranks)
        proposed = self._slowest(proposal_E)
        if self._net_gain(tokens, proposed, home_E, proposal_E) <= 0:
            return home_E, tokens, 0
        return proposal_E, proposed, tokens - proposed

    def _regroup(
        self,
        load_ME: NDArray[np.int64],
        previous_E: NDArray[np.int32],
        num_groups: int,
        num_proposals: int,
        stay_close: bool = False,
        traffic: GroupTraffic | None = None,
        ranks_per_group: int = 1,
    ) -> NDArray[np.int32]:
        """Split experts over groups anew.

        The search starts from the better of the previous split and a greedy one. With `stay_close` it starts from the
        previous split and stays close to it.
        """
        moves = None
        if self.counts_moves:
            # A token of the slowest rank is as many tokens of a group as it has ranks.
            tokens = self.hysteresis.tokens_per_move * ranks_per_group
            moves = Moves(from_E=previous_E, price=round(min(tokens, float(load_ME.sum()))))

        def improve_from(group_E: NDArray[np.int32], first_start: int) -> NDArray[np.int32]:
            return improve(load_ME, group_E, num_groups, self.seed, num_proposals, first_start, traffic, moves)

        if stay_close:
            return improve_from(previous_E, NUM_STARTS - 1)
        greedy_E = align(spread(load_ME.sum(axis=0), num_groups), previous_E, num_groups)
        start_E = min(previous_E, greedy_E, key=lambda group_E: objective(load_ME, group_E, num_groups, traffic, moves))
        split_E = improve_from(start_E, 0)
        has_equal_groups = traffic is None or len(traffic.local_NEM) == 1
        return align(split_E, previous_E, num_groups) if has_equal_groups else split_E

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
            None if self.traffic is None else self.traffic.of_nodes(),
            num_ranks,
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
        num_groups = self.cluster.num_ranks // num_ranks
        for group in range(num_groups):
            first = np.int32(group * num_ranks)
            expert_X = np.flatnonzero(home_E // num_ranks == group)
            load_MX = np.ascontiguousarray(self.load_ME[:, expert_X])
            rank_X = self._regroup(
                load_MX,
                home_E[expert_X] - first,
                num_ranks,
                self.num_proposals // num_groups,
                traffic=self._traffic_of_ranks(group, expert_X, num_groups),
            )
            moved_E[expert_X] = first + rank_X
        return moved_E

    def _traffic_of_ranks(self, group: int, expert_X: NDArray[np.int64], num_groups: int) -> GroupTraffic | None:
        """Return the traffic that a split over ranks can change: of all ranks, or of those of one node."""
        if self.traffic is None:
            return None
        if num_groups == 1:
            return self.traffic.of_ranks(self.cluster.gpus_per_node)
        if not self.traffic.by_rank:
            return None  # the ranks of a node share what enters it
        return self.traffic.of_ranks_inside(group, expert_X, self.cluster.gpus_per_node)
