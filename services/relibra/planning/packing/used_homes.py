"""Homes where experts are used: the beginning of a packing whose sequences and experts have nothing in common yet.

Where sequences of all kinds start on every node, every home is as good as another, so neither a search for homes nor
one for sources finds a way. Here load counts for nothing. Every expert gets the node whose sequences use it most, and a
small majority decides for all experts that are used together. Sequences that follow them make it a large one.

N nodes, L layers, E experts.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster


def used_homes(used_NLE: NDArray[np.integer], cluster: Cluster) -> NDArray[np.int32]:
    """Return a placement with every expert on the node that uses it most, as far as nodes have room; int32 `[L, E]`.

    Experts that prefer a node more come first.

    Args:
        used_NLE: the token copies of the sequences that start on each node.
        cluster: nodes and ranks.
    """
    num_nodes, num_layers, num_experts = used_NLE.shape
    used_LEN = np.moveaxis(used_NLE.astype(np.int64), 0, -1)
    # By how much a node uses an expert more than the others do in the mean, times N.
    more_LEN = used_LEN * num_nodes - used_LEN.sum(axis=-1, keepdims=True)
    order_LX = np.argsort(-more_LEN.reshape(num_layers, -1), axis=1, kind="stable")
    node_LE = np.full((num_layers, num_experts), -1, dtype=np.int32)
    num_homes_LN = np.zeros((num_layers, num_nodes), dtype=np.int32)
    place_LE = np.zeros_like(node_LE)
    layer_L = np.arange(num_layers)
    for of_layers_L in order_LX.T:
        expert_L, node_L = np.divmod(of_layers_L, num_nodes)
        is_free_L = (node_LE[layer_L, expert_L] < 0) & (num_homes_LN[layer_L, node_L] < num_experts // num_nodes)
        layer_n, expert_n, node_n = layer_L[is_free_L], expert_L[is_free_L], node_L[is_free_L]
        node_LE[layer_n, expert_n] = node_n
        place_LE[layer_n, expert_n] = num_homes_LN[layer_n, node_n]
        num_homes_LN[layer_n, node_n] += 1
    rank_LE = node_LE * np.int32(cluster.gpus_per_node)
    return rank_LE + place_LE // np.int32(num_experts // cluster.num_ranks)
