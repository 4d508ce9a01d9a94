"""How long tokens travel to their experts and back: what the busiest adapter or link has to carry.

All-to-all sends every token copy on its own. DeepEP sends a token once to every node that has experts of it, and once
to every rank of that node, so a crowded node is less of a bottleneck than its copies suggest: most of its tokens want
several experts there.

M rows, L layers, E experts, R EP ranks, N source nodes, D destination nodes, G ranks per node, Q quotas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.evaluation.model_shape import ModelShape
from relibra.planning.cost import CostModel
from relibra.planning.job import Cluster
from relibra.planning.load import StepLoad


def reached(share: NDArray[np.floating], model: ModelShape) -> NDArray[np.float64]:
    """Part of tokens that have at least one of their K experts among those who get this share of token copies.

    A token draws K different experts, and what it draws first says nothing about the rest. On the tokens of the two
    recorded traces, this is 1 % to 8 % less than what is counted: experts of a token avoid one another.
    """
    missed = np.ones_like(share, dtype=np.float64)
    for drawn in range(model.top_k):
        missed *= np.clip(1 - share / (1 - drawn / model.num_experts), 0.0, 1.0)
    return 1 - missed


def copies_of(assignment: Assignment, load: StepLoad, cluster: Cluster) -> NDArray[np.float64]:
    """Token copies by source node and computing rank, `[M, L, N, R]`.

    Copies of an expert take the same share of every source node's tokens.
    """
    row_Q, layer_Q, expert_Q, rank_Q = assignment.index_Q4.T.astype(np.int64)
    num_layers, num_nodes, num_ranks = len(assignment.home_LE), cluster.num_nodes, cluster.num_ranks
    share_Q = assignment.tokens_Q / load.load_MLE[row_Q, layer_Q, expert_Q]
    copies_MLNR = np.zeros((assignment.num_rows, num_layers, num_nodes, num_ranks))
    for row in range(assignment.num_rows):
        of_row_X = np.flatnonzero(row_Q == row)
        local_NLE = load.source_load_RLE(row).reshape(num_nodes, -1, *load.load_MLE.shape[1:]).sum(axis=1)
        layer_X, expert_X = layer_Q[of_row_X], expert_Q[of_row_X]
        place_X = layer_X * num_ranks + rank_Q[of_row_X]
        for node, local_LE in enumerate(local_NLE):
            copies_X = share_Q[of_row_X] * local_LE[layer_X, expert_X]
            sum_X = np.bincount(place_X, weights=copies_X, minlength=num_layers * num_ranks)
            copies_MLNR[row, :, node] = sum_X.reshape(num_layers, num_ranks)
    return copies_MLNR


def even_copies(load: StepLoad, cluster: Cluster) -> NDArray[np.float64]:
    """The same where every token draws its experts evenly, `[M, L, N, R]`."""
    by_node_MLN = np.stack(
        [
            load.source_load_RLE(row).sum(axis=-1).reshape(cluster.num_nodes, cluster.gpus_per_node, -1).sum(axis=1).T
            for row in range(load.num_rows)
        ]
    )
    return np.repeat(by_node_MLN[..., None] / cluster.num_ranks, cluster.num_ranks, axis=-1)


def dispatch_us_ML(
    copies_MLNR: NDArray[np.float64], cost: CostModel, cluster: Cluster, once_to: ModelShape | None
) -> NDArray[np.float64]:
    """Dispatch and combine of every cell, in microseconds; both networks work at the same time.

    Args:
        copies_MLNR: as `copies_of`.
        cost: sizes and bandwidths.
        cluster: the EP groups.
        once_to: the model whose tokens are sent once to a node and once to a rank; None sends every copy.
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
        to_node_MLND = tokens_MLN1 * reached(copies_MLND / total_MLN1, once_to)
        # What crosses arrives at the adapter with the number of its source, and is spread over NVLink from there.
        inside_MLR = (tokens_MLN1 * reached(copies_MLNR / total_MLN1, once_to)).sum(axis=2)
        entering_ML = _crossing(to_node_MLND).sum(axis=-2).max(axis=-1) / size
    leaving_ML = _crossing(to_node_MLND).sum(axis=-1).max(axis=-1) / size
    us_ML: NDArray[np.float64] = np.maximum(
        inside_MLR.max(axis=-1) * ((size - 1) / size * cost.token_size_bytes / cost.intra_node_bytes_per_us),
        np.maximum(entering_ML, leaving_ML) * (cost.token_size_bytes / cost.inter_node_bytes_per_us),
    )
    return us_ML


def _crossing(to_node_MLND: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without what stays on its node."""
    crossing_MLND: NDArray[np.float64] = to_node_MLND * ~np.eye(to_node_MLND.shape[-1], dtype=np.bool_)
    return crossing_MLND
