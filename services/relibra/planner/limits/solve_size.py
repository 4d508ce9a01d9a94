"""How large a schedule may be, from the numbers in it and before anything of that size exists (S7).

A small schedule may ask for a large solve: a micro-batch costs a few bytes in the message and a load of every expert in
the solver.

M rows, L layers, E experts, R EP ranks, S sequences.
"""

from relibra.errors import InvalidInput
from relibra.planner.limits.admission import Admission, check
from relibra.planning import Cluster, Model, PlanParams, Schedule
from relibra.planning.traffic_size import dispatch_costs_time, traffic_size_bytes
from relibra.store import JobRecord

MAX_PACKED_COUNTS = 1 << 28
"""Counts of all sequences of a step that is packed; reading and summing them takes seconds, in which a driver waits."""
MAX_PACKED_LOADS = 1 << 24
"""Loads of all cells of a step that is packed. The first packing of a job, which makes placements, takes 10 to 25 s
with so many."""
_COUNT_SIZE_BYTES = 1
"""In the narrowest dtype; the counts of longer sequences take two bytes or four."""
_LOAD_SIZE_BYTES = 8


def check_schedule(admission: Admission, job: JobRecord, schedule: Schedule) -> None:
    """Refuse a schedule that is too large to be solved, or that has more micro-batches than sequences.

    Raises:
        InvalidInput: the schedule has more micro-batches than sequences.
        LimitExceeded: the step has too many cells, or its solve needs more memory than a solver has.
    """
    num_sequences, num_micro_batches = schedule.num_sequences, schedule.num_micro_batches
    if num_micro_batches > num_sequences:
        raise InvalidInput.of(
            "schedule.micro_batch",
            expected=f"below {num_sequences}, the number of sequences",
            got=num_micro_batches - 1,
        )
    model, cluster, num_rows = job.model, job.cluster, schedule.num_rows(job.cluster)
    admission.check_num_cells(num_rows, model)
    size_bytes = solve_size_bytes(num_sequences, num_rows, model, cluster, job.params)
    most_bytes = admission.settings.solver_memory_bytes
    check(
        "solver_memory_bytes",
        size_bytes,
        most_bytes,
        f"schedule: expected a solve of at most {most_bytes} bytes (solver_memory_bytes), got {size_bytes}: "
        f"{num_sequences} sequences in {num_rows} rows ({num_micro_batches} micro-batches x "
        f"{cluster.num_ep_groups} EP groups) x {model.num_layers} layers x {model.num_experts} experts on "
        f"{cluster.num_ranks} ranks; schedule fewer micro-batches or sequences, or raise the limit",
    )


def check_packing(admission: Admission, job: JobRecord, start: Schedule) -> None:
    """Refuse a step that cannot be solved, or cannot be packed while its driver waits; raises as `check_schedule`."""
    check_schedule(admission, job, start)
    num_sequences, num_rows, model = start.num_sequences, start.num_rows(job.cluster), job.model
    for what, most, number, unit in (
        ("counts", MAX_PACKED_COUNTS, num_sequences, "sequences"),
        ("loads", MAX_PACKED_LOADS, num_rows, "rows"),
    ):
        got = number * model.num_layers * model.num_experts
        check(
            f"packed_{what}",
            got,
            most,
            f"a step may be packed with {most} {what}, got {got}: {number} {unit} x {model.num_layers} layers "
            f"x {model.num_experts} experts; submit the schedule as it is",
        )
    size_bytes = pack_size_bytes(num_sequences, num_rows, model, job.cluster, job.params)
    most_bytes = admission.settings.solver_memory_bytes
    check(
        "solver_memory_bytes",
        size_bytes,
        most_bytes,
        f"packing {num_sequences} sequences in {num_rows} rows takes {size_bytes} bytes, and a solver has "
        f"{most_bytes} (solver_memory_bytes); submit the schedule as it is, or raise the limit",
    )


def pack_size_bytes(num_sequences: int, num_rows: int, model: Model, cluster: Cluster, params: PlanParams) -> int:
    """Return the size of the arrays that packing needs in any case.

    They are those of a solve, and for each sequence its load of every group of ranks, `[L, P]`. A rank is counted as a
    group.
    """
    solve_bytes = solve_size_bytes(num_sequences, num_rows, model, cluster, params)
    groups_size_bytes = model.num_layers * cluster.num_ranks * _LOAD_SIZE_BYTES
    return solve_bytes + (num_sequences + 3 * num_rows) * groups_size_bytes


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
