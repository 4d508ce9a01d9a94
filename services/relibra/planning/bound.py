"""A lower bound on the slowest rank of every cell, for any plan with the same placement and slots.

Take `a` ranks of a node. What they may hand to the node's other G - a ranks are at most (G - a) * slots experts, so at
best the largest that many of theirs, in full; the rest stays with the `a` ranks, and one of them computes at least the
mean of it. With a = G this is the mean load of the node, with no slots and a = 1 the heaviest rank.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, X experts of a node.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled
from relibra.planning.topology import Cluster


def lower_bound_ML(load_MLE: NDArray[np.int64], home_LE: NDArray[np.int32], cluster: Cluster) -> NDArray[np.float64]:
    """Tokens of the slowest rank that no plan goes below: whole numbers, float64 `[M, L]`.

    The `a` ranks tried are the heaviest ones of every node, for every a.
    """
    by_node_LE = np.argsort(home_LE // cluster.gpus_per_node, axis=1, kind="stable")
    bound_ML = _bound_cells(
        np.ascontiguousarray(load_MLE),
        np.ascontiguousarray(home_LE, dtype=np.int64),
        by_node_LE.reshape(len(home_LE), cluster.num_nodes, -1),
        cluster.gpus_per_node,
        cluster.redundant_slots,
    )
    return bound_ML.astype(np.float64)


@compiled
def _bound_node(load_X: NDArray[np.int64], home_X: NDArray[np.int64], num_ranks: int, slots: int) -> int:
    load_G = np.zeros(num_ranks, dtype=np.int64)
    for expert in range(len(load_X)):
        load_G[home_X[expert]] += load_X[expert]
    heaviest_G = np.argsort(-load_G, kind="mergesort")
    place_G = np.empty(num_ranks, dtype=np.int64)
    place_G[heaviest_G] = np.arange(num_ranks)
    largest_X = np.argsort(-load_X, kind="mergesort")
    bound, held = 0, 0
    for num_taken in range(1, num_ranks + 1):
        held += load_G[heaviest_G[num_taken - 1]]
        can_leave = (num_ranks - num_taken) * slots
        stays = held
        for expert in largest_X:
            if can_leave == 0:
                break
            if place_G[home_X[expert]] < num_taken:
                stays -= load_X[expert]
                can_leave -= 1
        bound = max(bound, -(-stays // num_taken))
    return bound


@compiled
def _bound_cells(
    load_MLE: NDArray[np.int64],
    home_LE: NDArray[np.int64],
    expert_LNX: NDArray[np.int64],
    num_ranks: int,
    slots: int,
) -> NDArray[np.int64]:
    num_rows, num_layers, _ = load_MLE.shape
    bound_ML = np.zeros((num_rows, num_layers), dtype=np.int64)
    for row in range(num_rows):
        for layer in range(num_layers):
            load_E, home_E = load_MLE[row, layer], home_LE[layer] % num_ranks
            for expert_X in expert_LNX[layer]:
                bound = _bound_node(load_E[expert_X], home_E[expert_X], num_ranks, slots)
                bound_ML[row, layer] = max(bound_ML[row, layer], bound)
    return bound_ML
