"""Which rank is home to which expert: balance across nodes, which replicas cannot.

Every layer chooses among three placements, cheapest to reach first: the previous one; its experts split over nodes
anew, stayers keeping their rank; the better of these two with ranks inside nodes rearranged. What counts is the slowest
rank *after* replication, and a layer moves on only where that gains `MIN_GAIN`: experts travel with optimizer state.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, P groups (nodes or ranks).
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.load import home_loads
from relibra.planning.partition import NUM_PROPOSALS, align, fill, improve, spread
from relibra.planning.replicate import slowest_rank_ML
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
) -> tuple[NDArray[np.int32], str]:
    """Choose the home rank of every expert, int32 `[L, E]`; return it and why.

    Every layer ends with a slowest rank, summed over rows, that is at most the one of `identity_LE` without replicas.
    """
    home_LE = previous_LE
    tokens_L = slowest_rank_ML(load_MLE, home_LE, cluster, params).sum(axis=0)
    for propose in (_propose_nodes, _propose_ranks):
        proposal_LE = propose(load_MLE, home_LE, tokens_L, cluster, params.seed)
        proposed_L = slowest_rank_ML(load_MLE, proposal_LE, cluster, params).sum(axis=0)
        better_L = tokens_L - proposed_L > MIN_GAIN * tokens_L
        home_LE = np.where(better_L[:, None], proposal_LE, home_LE)
        tokens_L = np.where(better_L, proposed_L, tokens_L)
    worse_L = tokens_L > home_loads(load_MLE, identity_LE, cluster.num_ranks).max(axis=-1).sum(axis=0)
    home_LE = np.where(worse_L[:, None], identity_LE, home_LE)
    moved_LE = home_LE != previous_LE
    if not moved_LE.any():
        return home_LE, f"no layer reorders, none would gain {MIN_GAIN:.1%}"
    return home_LE, f"{moved_LE.any(axis=1).sum()} of {len(home_LE)} layers reorder {moved_LE.sum()} experts"


def _propose_nodes(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], tokens_L: NDArray[np.int64], cluster: Cluster, seed: int
) -> NDArray[np.int32]:
    """Split the experts of every layer over nodes anew, where replicas can even out the ranks of a node."""
    if cluster.num_nodes == 1 or not cluster.redundant_slots:
        return home_LE
    proposal_LE = home_LE.copy()
    for layer, home_E in enumerate(home_LE):
        proposal_LE[layer] = _move_between_nodes(load_MLE[:, layer], home_E, cluster, seed + layer)
    return proposal_LE


def _propose_ranks(
    load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], tokens_L: NDArray[np.int64], cluster: Cluster, seed: int
) -> NDArray[np.int32]:
    """Rearrange ranks inside nodes, or over all nodes where there are no replicas, where that can gain enough."""
    num_groups = cluster.num_nodes if cluster.redundant_slots else 1
    num_ranks = cluster.num_ranks // num_groups
    floor_L = home_loads(load_MLE, home_LE // np.int32(num_ranks), num_groups).max(axis=-1).sum(axis=0) // num_ranks
    proposal_LE = home_LE.copy()
    for layer in np.flatnonzero(tokens_L - floor_L > MIN_GAIN * tokens_L):
        proposal_LE[layer] = _move_inside_groups(
            load_MLE[:, layer], home_LE[layer], num_groups, num_ranks, seed + int(layer)
        )
    return proposal_LE


def _regroup(
    load_ME: NDArray[np.int64], previous_E: NDArray[np.int32], num_groups: int, seed: int, num_proposals: int
) -> NDArray[np.int32]:
    """Split experts over groups, from the better of the previous split and a greedy one."""
    greedy_E = align(spread(load_ME.sum(axis=0), num_groups), previous_E, num_groups)
    start_E = min(previous_E, greedy_E, key=lambda group_E: _largest_groups(load_ME, group_E, num_groups))
    return align(improve(load_ME, start_E, num_groups, seed, num_proposals), previous_E, num_groups)


def _largest_groups(load_ME: NDArray[np.int64], group_E: NDArray[np.int32], num_groups: int) -> int:
    by_group_PE = group_E == np.arange(num_groups)[:, None]
    return int((load_ME @ by_group_PE.T).max(axis=1).sum())


def _move_between_nodes(
    load_ME: NDArray[np.int64], previous_E: NDArray[np.int32], cluster: Cluster, seed: int
) -> NDArray[np.int32]:
    """Split experts over nodes; who stays on a node stays on its rank, and newcomers fill the gaps."""
    previous_node_E = previous_E // np.int32(cluster.gpus_per_node)
    node_E = _regroup(load_ME, previous_node_E, cluster.num_nodes, seed, NUM_PROPOSALS)
    home_E, total_E = previous_E.copy(), load_ME.sum(axis=0)
    room = len(home_E) // cluster.num_ranks
    for node in range(cluster.num_nodes):
        first = node * cluster.gpus_per_node
        newcomer_X = np.flatnonzero((node_E == node) & (previous_node_E != node))
        stayer_X = np.flatnonzero((node_E == node) & (previous_node_E == node))
        rank_X = previous_E[stayer_X] - first
        stayer_load_G = np.zeros(cluster.gpus_per_node, dtype=np.int64)
        np.add.at(stayer_load_G, rank_X, total_E[stayer_X])
        room_G = room - np.bincount(rank_X, minlength=cluster.gpus_per_node)
        home_E[newcomer_X] = fill(total_E[newcomer_X], stayer_load_G, room_G) + np.int32(first)
    return home_E


def _move_inside_groups(
    load_ME: NDArray[np.int64], home_E: NDArray[np.int32], num_groups: int, num_ranks: int, seed: int
) -> NDArray[np.int32]:
    """Keep every expert in its group of ranks, and split the group's experts over its ranks anew."""
    moved_E = home_E.copy()
    for group in range(num_groups):
        first = np.int32(group * num_ranks)
        expert_X = np.flatnonzero(home_E // num_ranks == group)
        rank_X = _regroup(load_ME[:, expert_X], home_E[expert_X] - first, num_ranks, seed, NUM_PROPOSALS // num_groups)
        moved_E[expert_X] = first + rank_X
    return moved_E
