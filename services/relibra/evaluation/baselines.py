"""What others would do with the same loads: nothing, or EPLB.

M rows, L layers, E experts, R EP ranks, N nodes, P physical experts (home copies and replicas), B bins.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from relibra.planning.load import home_loads
from relibra.planning.topology import Cluster, Model


def identity(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> NDArray[np.float64]:
    """Tokens of every rank under plain expert parallelism, `[M, L, R]`."""
    return home_loads(load_MLE.astype(np.int64), cluster.identity_placement(model), cluster.num_ranks).astype(float)


def eplb(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> NDArray[np.float64]:
    """Tokens of every rank under EPLB with oracle loads, `[M, L, R]`.

    One placement and one set of replicas for the step, chosen on the step's own total loads; every rank has
    `redundant_slots` more physical experts than E/R, and the copies of an expert share its tokens evenly.
    """
    num_ranks = cluster.num_ranks
    slots_per_rank = cluster.experts_per_rank(model) + cluster.redundant_slots
    logical_LP = rebalance_experts(
        load_MLE.sum(axis=0), num_ranks * slots_per_rank, model.num_experts, cluster.num_nodes, num_ranks
    )
    loads_MLR = np.zeros((*load_MLE.shape[:2], num_ranks))
    for layer, logical_P in enumerate(logical_LP):
        copies_E = np.bincount(logical_P, minlength=model.num_experts)
        load_MP = load_MLE[:, layer, logical_P] / copies_E[logical_P]
        loads_MLR[:, layer] = load_MP.reshape(-1, num_ranks, slots_per_rank).sum(axis=-1)
    return loads_MLR


def rebalance_experts(
    weight_LE: NDArray[np.number], num_physical: int, num_groups: int, num_nodes: int, num_ranks: int
) -> NDArray[np.int64]:
    """Place physical experts by EPLB's hierarchical recipe; return the logical expert of each, `[L, P]`, rank by rank.

    Groups of experts are packed to nodes, the experts of each node replicated where they are most loaded per copy, and
    the copies packed to the node's ranks. After deepseek-ai/EPLB (commit d52c72d), written anew.

    Args:
        weight_LE: load of every logical expert.
        num_physical: P, a multiple of `num_ranks`.
        num_groups: expert groups, a multiple of `num_nodes`; E where experts are not grouped.
        num_nodes: N.
        num_ranks: R.
    """
    return np.stack(
        [_rebalance_layer(weight_E, num_physical, num_groups, num_nodes, num_ranks) for weight_E in weight_LE]
    )


def _rebalance_layer(
    weight_E: NDArray[np.number], num_physical: int, num_groups: int, num_nodes: int, num_ranks: int
) -> NDArray[np.int64]:
    by_group = np.arange(len(weight_E)).reshape(num_groups, -1)
    node_bins = _pack(weight_E[by_group].sum(axis=1), num_nodes)
    logical_P: list[int] = []
    for groups in node_bins:
        expert_X = by_group[groups].ravel()
        copy_P = _replicate(weight_E[expert_X], num_physical // num_nodes)
        share_P = (weight_E[expert_X] / np.bincount(copy_P))[copy_P]
        for copies in _pack(share_P, num_ranks // num_nodes):
            logical_P += expert_X[copy_P[copies]].tolist()
    return np.array(logical_P)


def _pack(weight_X: NDArray[np.number], num_bins: int) -> list[list[int]]:
    """Longest processing time first into bins of equal count: the items of every bin, in the order they came."""
    capacity = len(weight_X) // num_bins
    if capacity == 1:
        return [[item] for item in range(num_bins)]
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    open_bins = [(0.0, index) for index in range(num_bins)]
    for item in np.argsort(-weight_X, kind="stable"):
        weight, lightest = heapq.heappop(open_bins)
        bins[lightest].append(int(item))
        if len(bins[lightest]) < capacity:
            heapq.heappush(open_bins, (weight + float(weight_X[item]), lightest))
    return bins


def _replicate(weight_X: NDArray[np.number], num_copies: int) -> NDArray[np.int64]:
    """Give copy after copy to the expert with the most load per copy; the expert of each, first copies in order."""
    copies_X = np.ones(len(weight_X))
    expert_P = list(range(len(weight_X)))
    for _ in range(num_copies - len(weight_X)):
        hottest = int(np.argmax(weight_X / copies_X))
        copies_X[hottest] += 1
        expert_P.append(hottest)
    return np.array(expert_P)
