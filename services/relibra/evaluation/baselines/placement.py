"""Balance without splitting an expert: not at all, by longest processing time first, or by moving whole experts.

M rows, L layers, E experts, R EP ranks, N nodes, G ranks per node, X experts of a node.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, Known, at_home
from relibra.planning.job import Cluster, Model
from relibra.planning.placement.partition import fill, spread


def identity(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> Assignment:
    """Place experts as plain expert parallelism does."""
    return at_home(load_MLE, cluster.identity_placement(model))


def longest_first(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> Assignment:
    """Place by longest processing time first on each layer's total loads, as RoutePack does (arXiv 2608.12146)."""
    total_LE = load_MLE.sum(axis=0, dtype=np.int64)
    home_LE = np.stack([spread(total_E, cluster.num_ranks) for total_E in total_LE])
    return at_home(load_MLE, home_LE)


def whole_experts(load_MLE: NDArray[np.integer], model: Model, cluster: Cluster) -> Assignment:
    """Let the heaviest experts of every rank move, whole, inside the node in every cell: FEPLB (arXiv 2604.19654).

    A rank may give away as many experts as it has redundant slots. They go, heaviest first, to the lightest rank with
    room. The copy engine hides the transfer behind the experts that stay.
    """
    home_LE = cluster.identity_placement(model)
    num_rows, num_layers, num_experts = load_MLE.shape
    share, size = num_experts // cluster.num_ranks, cluster.gpus_per_node
    num_free = min(cluster.redundant_slots, share)
    index_Q4 = np.argwhere(load_MLE)
    rank_MLE = np.broadcast_to(home_LE, load_MLE.shape).copy()
    if num_free and size > 1:
        for row, layer, node in np.ndindex(num_rows, num_layers, cluster.num_nodes):
            expert_GS = np.arange(node * size * share, (node + 1) * size * share).reshape(size, share)
            load_GS = load_MLE[row, layer, expert_GS].astype(np.int64)
            order_GS = np.argsort(-load_GS, axis=1, kind="stable")
            free_X = np.take_along_axis(expert_GS, order_GS[:, :num_free], axis=1).ravel()
            fixed_GS = np.take_along_axis(load_GS, order_GS[:, num_free:], axis=1)
            room_G = np.full(size, num_free)
            rank_X = fill(load_MLE[row, layer, free_X].astype(np.int64), fixed_GS.sum(axis=1), room_G)
            rank_MLE[row, layer, free_X] = node * size + rank_X
    rank_Q = rank_MLE[tuple(index_Q4.T)]
    return Assignment(
        home_LE=home_LE,
        index_Q4=np.concatenate([index_Q4, rank_Q[:, None]], axis=1).astype(np.int32),
        tokens_Q=load_MLE[tuple(index_Q4.T)].astype(np.int64),
        num_rows=num_rows,
        known=Known.AHEAD,
    )
