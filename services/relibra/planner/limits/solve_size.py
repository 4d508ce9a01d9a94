"""How much memory the solve of a step takes at least, from the numbers in its schedule (S7).

A small schedule may ask for a large solve: a micro-batch costs a few bytes in the message and a load of every expert in
the solver. The size is known before anything of that size exists.

M rows, L layers, E experts, R EP ranks, S sequences.
"""

from relibra.planning import Cluster, Model, PlanParams
from relibra.planning.traffic_size import dispatch_costs_time, traffic_size_bytes

_COUNT_SIZE_BYTES = 1
"""In the narrowest dtype; the counts of longer sequences take two bytes or four."""
_LOAD_SIZE_BYTES = 8


_MIXED_SIZE_BYTES = 24 << 10
"""The mixed loads of a sequence, while they are made (`planning.packing.rows`)."""


def pack_size_bytes(num_sequences: int, num_rows: int, model: Model, cluster: Cluster, params: PlanParams) -> int:
    """Return the size of the arrays that packing needs in any case.

    They are those of a solve, and for each sequence its load of every group of ranks, `[L, P]`, and its mixed loads. A
    rank is counted as a group.
    """
    solve_bytes = solve_size_bytes(num_sequences, num_rows, model, cluster, params)
    groups_size_bytes = model.num_layers * cluster.num_ranks * _LOAD_SIZE_BYTES
    return solve_bytes + num_sequences * (groups_size_bytes + _MIXED_SIZE_BYTES) + 3 * num_rows * groups_size_bytes


def solve_size_bytes(num_sequences: int, num_rows: int, model: Model, cluster: Cluster, params: PlanParams) -> int:
    """Return the size of the arrays that a solve needs in any case; a solve of many replicas takes more.

    The arrays are counts `[S, L, E]` and loads `[M, L, E]`. Where dispatch costs time, the sums of `planning.traffic`
    come on top.
    """
    cells_size_bytes = num_rows * model.num_layers * _LOAD_SIZE_BYTES
    counts_size_bytes = num_sequences * model.num_layers * model.num_experts * _COUNT_SIZE_BYTES
    size_bytes = counts_size_bytes + cells_size_bytes * model.num_experts
    if dispatch_costs_time(cluster, params.counting_copies(model, cluster)):
        size_bytes += traffic_size_bytes(num_rows, model, cluster)
    return size_bytes
