"""EPLB packs experts to ranks and replicates the heaviest; the copies of an expert share its tokens evenly.

Reimplements deepseek-ai/EPLB (commit d52c72d).

M rows, L layers, E experts, R EP ranks, N nodes, P physical experts (home copies and replicas), B bins, X pieces
or copies.
"""

import heapq

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, from_pieces
from relibra.planning.job import Cluster, Model
from relibra.planning.load import imbalance
from relibra.planning.plan import Plan


def eplb(
    load_MLE: NDArray[np.integer],
    model: Model,
    cluster: Cluster,
    seen_MLE: NDArray[np.integer] | None = None,
) -> Assignment:
    """Balance with one placement for the step, made for the total of the loads `seen_MLE` (by default the step's own).

    Every rank has `redundant_slots` more physical experts than E/R. An expert's home is the rank of its first copy.
    """
    logical_LP = physical_experts((load_MLE if seen_MLE is None else seen_MLE).sum(axis=0), model, cluster)
    home_LE = first_copies(logical_LP, model, cluster)
    return share_evenly(load_MLE, logical_LP, home_LE, cluster)


def eplb_imbalance(load_MLE: NDArray[np.integer], plan: Plan) -> float:
    """Return the imbalance that EPLB reaches on the loads of a plan, with the same slots; 1.0 is ideal."""
    return imbalance(eplb(load_MLE, plan.model, plan.cluster).rank_loads_MLR(plan.cluster))


def physical_experts(load_LE: NDArray[np.integer], model: Model, cluster: Cluster) -> NDArray[np.int64]:
    """Return the logical expert of every physical expert, `[L, P]`, rank by rank."""
    num_physical = model.num_experts + cluster.num_ranks * cluster.redundant_slots
    return rebalance_experts(load_LE, num_physical, model.num_experts, cluster.num_nodes, cluster.num_ranks)


def first_copies(logical_LP: NDArray[np.integer], model: Model, cluster: Cluster) -> NDArray[np.int32]:
    """Return the rank of each expert's first copy, `[L, E]`: EPLB knows no homes, so this counts as the home."""
    num_layers, num_physical = logical_LP.shape
    rank_P = np.arange(num_physical) // (num_physical // cluster.num_ranks)
    home_LE = np.empty((num_layers, model.num_experts), dtype=np.int32)
    for layer, logical_P in enumerate(logical_LP):
        home_LE[layer, logical_P[::-1]] = rank_P[::-1]  # the first copy is written last, so it is the home
    return home_LE


def share_evenly(
    load_MLE: NDArray[np.integer], logical_LP: NDArray[np.integer], home_LE: NDArray[np.int32], cluster: Cluster
) -> Assignment:
    """Return the assignment in which the copies of an expert share its tokens evenly.

    Args:
        load_MLE: the tokens of every cell.
        logical_LP: the logical expert of every physical expert, rank by rank.
        home_LE: the home rank of each expert.
        cluster: the EP group.
    """
    num_rows, _, num_experts = load_MLE.shape
    rank_P = np.arange(logical_LP.shape[1]) // (logical_LP.shape[1] // cluster.num_ranks)
    index, tokens = [], []
    for layer, expert_P in enumerate(logical_LP):
        copies_E = np.bincount(expert_P, minlength=num_experts)
        order_P = np.argsort(expert_P, kind="stable")
        turn_P = np.empty_like(order_P)
        turn_P[order_P] = np.arange(len(order_P)) - (np.cumsum(copies_E) - copies_E)[expert_P[order_P]]
        copies_P = copies_E[expert_P]
        for row in range(num_rows):
            tokens.append((load_MLE[row, layer, expert_P] + copies_P - 1 - turn_P) // copies_P)
            place_P = np.zeros_like(rank_P)
            index.append(np.stack([place_P + row, place_P + layer, expert_P, rank_P], axis=1))
    return from_pieces(np.concatenate(index), np.concatenate(tokens), home_LE, num_rows)


def rebalance_experts(
    weight_LE: NDArray[np.number], num_physical: int, num_groups: int, num_nodes: int, num_ranks: int
) -> NDArray[np.int64]:
    """Place physical experts by EPLB's hierarchical recipe; return the logical expert of each, `[L, P]`, rank by rank.

    Groups of experts are packed to nodes, the experts of each node replicated where they are most loaded per copy, and
    the copies packed to the node's ranks. After deepseek-ai/EPLB (commit d52c72d), reimplemented.

    Args:
        weight_LE: the load of every logical expert.
        num_physical: P, a multiple of `num_ranks`.
        num_groups: the number of expert groups, a multiple of `num_nodes`; E if experts are not grouped.
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
        copy_P = copies_of(weight_E[expert_X], num_physical // num_nodes)
        share_P = (weight_E[expert_X] / np.bincount(copy_P))[copy_P]
        for copies in _pack(share_P, num_ranks // num_nodes):
            logical_P += expert_X[copy_P[copies]].tolist()
    return np.array(logical_P)


def _pack(weight_X: NDArray[np.number], num_bins: int) -> list[list[int]]:
    """Pack longest processing time first into bins of equal count; return the items of every bin in packing order."""
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


def copies_of(weight_X: NDArray[np.number], num_copies: int, most: float = np.inf) -> NDArray[np.int64]:
    """Give copy after copy to the expert with the most load per copy; return each copy's expert, first copies first.

    Args:
        weight_X: the loads of experts.
        num_copies: how many copies there are, at least one of each expert.
        most: how many copies an expert may have.
    """
    copies_X = np.ones(len(weight_X))
    expert_P = list(range(len(weight_X)))
    for _ in range(num_copies - len(weight_X)):
        hottest = int(np.argmax(np.where(copies_X < most, weight_X / copies_X, -1)))
        copies_X[hottest] += 1
        expert_P.append(hottest)
    return np.array(expert_P)
