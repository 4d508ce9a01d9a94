"""What it is worth that experts live on the node whose tokens ask for them: the network between nodes is the slow one.

A token copy that crosses nodes costs as much time as some number of computed tokens (`CostModel.crossing_tokens`). In
these units the reorder weighs balance against traffic. Where the cost model does not say how large a token is, crossing
is free and only balance counts.

L layers, N nodes, E experts, S sequences.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.job import Cluster, PlanParams
from relibra.planning.load import StepLoad

_UNIT_BITS = 10
"""Prices are whole multiples of 2**-10 tokens, so that they are the same on every host (S8)."""


def price_crossing(load: StepLoad, cluster: Cluster, params: PlanParams) -> NDArray[np.int64] | None:
    """Return what living on a node costs every expert, in tokens of the largest node, int64 `[L, N, E]`.

    It is summed over the rows of the step and shared by the ranks of all nodes, which send and receive at once. None
    where there is one node only, or crossing costs nothing.
    """
    crossing_tokens = params.cost.crossing_tokens if params.cost is not None else 0.0
    price = round(crossing_tokens / cluster.num_nodes * (1 << _UNIT_BITS))
    if cluster.num_nodes == 1 or price == 0:
        return None
    num_layers, num_experts = load.counts_SLE.shape[1:]
    stays_LNE = np.zeros((num_layers, cluster.num_nodes, num_experts), dtype=np.int64)
    for sequence, node in enumerate(load.source_rank_S // cluster.gpus_per_node):
        stays_LNE[:, node] += load.counts_SLE[sequence].astype(np.int64, copy=False)
    crossing_LNE: NDArray[np.int64] = (stays_LNE.sum(axis=1, keepdims=True) - stays_LNE) * price >> _UNIT_BITS
    return crossing_LNE
