"""What planning needs of a routing trace, with no services running.

S sequences, L layers, E experts.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.evaluation.schedules import largest_tokens
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import StepLoad
from relibra.planning.schedule import Packing, Schedule
from relibra.routing.counts import count_sequences
from relibra.routing.trace import RoutingTrace

_DEFAULT_MICRO_BATCHES = 16

_STATE_BYTES_PER_WEIGHT_BYTE = 7
"""A bf16 parameter has 2 bytes; its fp32 master and two moments have 12 more."""


def model_of(
    trace: RoutingTrace, expert_weight_size_bytes: int = 0, expert_state_size_bytes: int | None = None
) -> Model:
    """Return the MoE layers that a trace was recorded from.

    Args:
        trace: the trace.
        expert_weight_size_bytes: weights of one expert, which a trace does not tell; 0 leaves it unknown.
        expert_state_size_bytes: weights, fp32 masters and moments of one expert; bf16 weights and Adam by default.
    """
    if expert_state_size_bytes is None:
        expert_state_size_bytes = _STATE_BYTES_PER_WEIGHT_BYTE * expert_weight_size_bytes
    return Model(
        num_layers=trace.num_layers,
        num_experts=trace.num_experts,
        top_k=trace.top_k,
        expert_weight_size_bytes=expert_weight_size_bytes,
        expert_state_size_bytes=expert_state_size_bytes,
    )


def schedule_of(trace: RoutingTrace, cluster: Cluster, num_micro_batches: int | None = None) -> Schedule:
    """Return the fixed schedule of a trace, or else deal its sequences out.

    Args:
        trace: the trace.
        cluster: whose source ranks take turns.
        num_micro_batches: for a trace without a schedule; defaults to 16, or fewer where there are fewer sequences.

    Raises:
        InvalidInput: `num_micro_batches` contradicts a fixed schedule, is not positive, or exceeds the sequences.
    """
    if trace.schedule is not None:
        if num_micro_batches is not None:
            raise InvalidInput.of(
                "micro_batches",
                expected=f"none, as the trace fixes a schedule of {trace.schedule.num_micro_batches}",
                got=num_micro_batches,
            )
        trace.schedule.check(cluster)
        return trace.schedule
    return _deal(trace, cluster, num_micro_batches)


def load_of(trace: RoutingTrace, schedule: Schedule, cluster: Cluster) -> StepLoad:
    """Sum the routing of a trace into the cells of a schedule."""
    return StepLoad.of(count_sequences(trace), schedule, cluster)


def pack_trace(
    trace: RoutingTrace,
    counts_SLE: NDArray[np.integer],
    model: Model,
    cluster: Cluster,
    params: PlanParams | None = None,
    num_micro_batches: int | None = None,
    token_budget: int | None = None,
) -> tuple[Packing, int, str]:
    """Pack the sequences of a trace anew; return the packing, the token budget it keeps, and why.

    Args:
        trace: the trace.
        counts_SLE: what `count_sequences` says of it.
        model: what `model_of` says of it.
        cluster: the EP groups.
        params: how to plan.
        num_micro_batches: as many as a fixed schedule has, else as for `schedule_of`, by default.
        token_budget: most tokens of a source rank in a micro-batch; what the schedule without packing needs by default.

    Raises:
        InvalidInput: as `schedule_of` and `pack`.
    """
    from relibra.planning.packing.pack import pack  # loads numba

    length_S = np.diff(trace.offsets)
    if trace.schedule is None or num_micro_batches is None:
        start = schedule_of(trace, cluster, num_micro_batches)
    else:
        start = _deal(trace, cluster, num_micro_batches)
    if token_budget is None:
        token_budget = largest_tokens(trace.schedule or start, length_S, cluster)
    packing, reason = pack(counts_SLE, length_S, start, model, cluster, token_budget, params)
    return packing, token_budget, reason


def _deal(trace: RoutingTrace, cluster: Cluster, num_micro_batches: int | None) -> Schedule:
    if num_micro_batches is None:
        num_micro_batches = min(_DEFAULT_MICRO_BATCHES, trace.num_sequences)
    if not 1 <= num_micro_batches <= trace.num_sequences:
        raise InvalidInput.of(
            "micro_batches", expected=f"1 to the {trace.num_sequences} sequences", got=num_micro_batches
        )
    return Schedule.round_robin(trace.num_sequences, num_micro_batches, cluster)
