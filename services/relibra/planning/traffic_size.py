"""Whether a plan counts what dispatch costs, and how much memory that takes.

The process that serves agents asks for both (`planner.solve_size`), so this module imports no compiled code.

M rows, L layers, E experts, N nodes.
"""

import numpy as np

from relibra.planning.job import Cluster, Model, PlanParams

MAX_KEPT_BYTES = 64 << 20
"""How much the sums of all layers may take to be kept; larger ones are made anew for each layer."""


def dispatch_costs_time(cluster: Cluster, params: PlanParams) -> bool:
    """Return whether plans count what dispatch costs: the cost model says how large a token is, and nodes are many."""
    return cluster.num_nodes > 1 and params.cost is not None and params.cost.token_size_bytes > 0


def traffic_size_bytes(num_rows: int, model: Model, cluster: Cluster) -> int:
    """Return the memory of the sums that a solve holds at once where dispatch costs time.

    These are the copies of all cells that cross, `[M, L, E]`, the sums of a layer by source node, `[N, E, M]`, twice
    while they are made, and the sums of all layers where they are kept.
    """
    cell_size_bytes = num_rows * model.num_experts * np.dtype(np.int64).itemsize
    layer_size_bytes = cluster.num_nodes * cell_size_bytes
    kept_size_bytes = model.num_layers * layer_size_bytes
    if kept_size_bytes > MAX_KEPT_BYTES:
        kept_size_bytes = layer_size_bytes
    return model.num_layers * cell_size_bytes + layer_size_bytes + kept_size_bytes
