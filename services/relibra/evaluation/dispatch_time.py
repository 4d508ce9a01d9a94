"""The time in which tokens travel to their experts and back, which the busiest adapter or link decides.

An all-to-all sends every token copy on its own. DeepEP and HybridEP send a token once to every node that has experts
for it, and there once to every such rank. So a crowded node is less of a bottleneck than its copies suggest: most of
its tokens want several experts there.

M rows, L layers, E experts, R EP ranks, N source nodes, D destination nodes, G ranks per node, Q quotas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.evaluation.model_shape import ModelShape
from relibra.planning.job import Cluster
from relibra.planning.load import StepLoad
from relibra.planning.machines.constants import Constants


def share_of_tokens(share: NDArray[np.floating], model: ModelShape) -> NDArray[np.float64]:
    """Return the part of tokens that have at least one of their K experts in a set with this share of all token copies.

    The model: a token draws K different experts, otherwise independently. For the two recorded traces the result is
    1 % to 8 % below the counted part, because the experts of a token avoid one another.
    """
    missed = np.ones_like(share, dtype=np.float64)
    for drawn in range(model.top_k):
        missed *= np.clip(1 - share / (1 - drawn / model.num_experts), 0.0, 1.0)
    return 1 - missed


def copies_of(assignment: Assignment, load: StepLoad, cluster: Cluster) -> NDArray[np.float64]:
    """Return the token copies by source node and computing rank, `[M, L, N, R]`.

    Where the assignment does not say how many tokens of a replica cross, each copy of an expert gets the same part of
    every source node's tokens. Those that cross come from the other nodes in equal parts.
    """
    row_Q, layer_Q, expert_Q, rank_Q = assignment.index_Q4.T.astype(np.int64)
    num_layers, num_nodes, num_ranks = len(assignment.home_LE), cluster.num_nodes, cluster.num_ranks
    node_Q = rank_Q // cluster.gpus_per_node
    copies_MLNR = np.zeros((assignment.num_rows, num_layers, num_nodes, num_ranks))
    for row in range(assignment.num_rows):
        of_row_X = np.flatnonzero(row_Q == row)
        layer_X, expert_X, node_X = layer_Q[of_row_X], expert_Q[of_row_X], node_Q[of_row_X]
        local_NLE = load.source_load_RLE(row).reshape(num_nodes, -1, *load.load_MLE.shape[1:]).sum(axis=1)
        of_node_XN = local_NLE[:, layer_X, expert_X].T
        local_X = of_node_XN[np.arange(len(of_row_X)), node_X]
        crossing_X = _crossing_X(assignment, of_row_X, of_node_XN.sum(axis=1) - local_X, local_X)
        place_X = layer_X * num_ranks + rank_Q[of_row_X]
        elsewhere_X = np.maximum(of_node_XN.sum(axis=1) - local_X, 1)
        for node in range(num_nodes):
            copies_X = np.where(
                node_X == node,
                assignment.tokens_Q[of_row_X] - crossing_X,
                crossing_X * of_node_XN[:, node] / elsewhere_X,
            )
            sum_X = np.bincount(place_X, weights=copies_X, minlength=num_layers * num_ranks)
            copies_MLNR[row, :, node] = sum_X.reshape(num_layers, num_ranks)
    return copies_MLNR


def _crossing_X(
    assignment: Assignment, of_row_X: NDArray[np.int64], elsewhere_X: NDArray[np.int64], local_X: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return how many tokens of these quotas of one row come from other nodes.

    Args:
        assignment: the assignment that the quotas are a part of.
        of_row_X: the numbers of the quotas.
        elsewhere_X: the tokens that other nodes have for the quota's expert.
        local_X: the tokens that the quota's node has for it.
    """
    if assignment.crossing_Q is None:
        tokens_X = assignment.tokens_Q[of_row_X].astype(np.float64)
        return tokens_X * (elsewhere_X / (elsewhere_X + local_X))
    crossing_X = assignment.crossing_Q[of_row_X].astype(np.float64)
    _, layer_X, expert_X, _ = assignment.index_Q4[of_row_X].T.astype(np.int64)
    key_X = layer_X * assignment.home_LE.shape[1] + expert_X
    by_replicas_X = np.bincount(key_X, weights=crossing_X)[key_X]
    at_home_X: NDArray[np.float64] = np.where(
        assignment.is_replica_Q[of_row_X], crossing_X, elsewhere_X - by_replicas_X
    )
    return at_home_X


def even_copies(load: StepLoad, cluster: Cluster) -> NDArray[np.float64]:
    """Return what `copies_of` would if every token drew its experts evenly, `[M, L, N, R]`."""
    by_node_MLN = np.stack(
        [
            load.source_load_RLE(row).sum(axis=-1).reshape(cluster.num_nodes, cluster.gpus_per_node, -1).sum(axis=1).T
            for row in range(load.num_rows)
        ]
    )
    return np.repeat(by_node_MLN[..., None] / cluster.num_ranks, cluster.num_ranks, axis=-1)


def dispatch_us_ML(
    copies_MLNR: NDArray[np.float64],
    token_size_bytes: float,
    constants: Constants,
    cluster: Cluster,
    once_to: ModelShape | None,
) -> NDArray[np.float64]:
    """Return the time of dispatch and combine of every cell; both networks work at the same time.

    Args:
        copies_MLNR: the result of `copies_of`.
        token_size_bytes: the bytes that dispatch and combine of one token copy move together.
        constants: the rates of dispatch.
        cluster: the EP groups.
        once_to: the model, if a token is sent once to each node and once to each rank; None if every copy is sent.
    """
    num_nodes, size = cluster.num_nodes, cluster.gpus_per_node
    copies_MLND = copies_MLNR.reshape(*copies_MLNR.shape[:-1], num_nodes, size).sum(axis=-1)
    if once_to is None:
        to_node_MLND = copies_MLND
        inside_MLNG = np.einsum("mlnng->mlng", copies_MLNR.reshape(*copies_MLND.shape, size))
        inside_MLR = inside_MLNG.reshape(*copies_MLNR.shape[:2], cluster.num_ranks)
        entering_ML = (copies_MLNR.sum(axis=2) - inside_MLR).max(axis=-1)
    else:
        total_MLN1 = np.maximum(copies_MLNR.sum(axis=-1, keepdims=True), 1e-9)
        tokens_MLN1 = total_MLN1 / once_to.top_k
        to_node_MLND = tokens_MLN1 * share_of_tokens(copies_MLND / total_MLN1, once_to)
        # A token that crosses arrives at the adapter of its source's index, and NVLink spreads it from there.
        inside_MLR = (tokens_MLN1 * share_of_tokens(copies_MLNR / total_MLN1, once_to)).sum(axis=2)
        entering_ML = _crossing(to_node_MLND).sum(axis=-2).max(axis=-1) / size
    leaving_ML = _crossing(to_node_MLND).sum(axis=-1).max(axis=-1) / size
    us_ML: NDArray[np.float64] = np.maximum(
        inside_MLR.max(axis=-1) * ((size - 1) / size * token_size_bytes / constants.dispatch_inside_bytes_per_us),
        np.maximum(entering_ML, leaving_ML) * (token_size_bytes / constants.dispatch_across_bytes_per_us),
    )
    return us_ML


def _crossing(to_node_MLND: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the traffic without the part that stays on its node."""
    crossing_MLND: NDArray[np.float64] = to_node_MLND * ~np.eye(to_node_MLND.shape[-1], dtype=np.bool_)
    return crossing_MLND
