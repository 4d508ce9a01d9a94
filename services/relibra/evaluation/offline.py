"""Prepare a routing trace for planning, with no services running.

S sequences, L layers, E experts.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import StepLoad
from relibra.planning.packing.caps import most_tokens
from relibra.planning.plan import Plan
from relibra.planning.schedule import Packing, Schedule
from relibra.routing.counts import count_sequences
from relibra.routing.trace import RoutingTrace

_DEFAULT_MICRO_BATCHES = 16

_STATE_BYTES_PER_WEIGHT_BYTE = 7
"""A bf16 parameter has 2 bytes; its fp32 master weight and two moments add 12."""


def model_of(
    trace: RoutingTrace, expert_weight_size_bytes: int = 0, expert_state_size_bytes: int | None = None
) -> Model:
    """Return the MoE layers that a trace was recorded from.

    Args:
        trace: the trace.
        expert_weight_size_bytes: the size of one expert's weights, which the trace does not contain; 0 means unknown.
        expert_state_size_bytes: the size of one expert's weights, master weights and moments; by default that of bf16
            weights with Adam.
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
    """Return the fixed schedule of a trace, or deal its sequences round-robin if it has none.

    Args:
        trace: the trace.
        cluster: the EP groups whose source ranks take turns.
        num_micro_batches: the number for a trace without a schedule; by default 16, or the number of sequences if
            that is smaller.

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
    """Return the load of a trace's routing under a schedule."""
    return StepLoad.of(count_sequences(trace), schedule, cluster)


def cross_node_share(plan: Plan, counts_SLE: NDArray[np.integer]) -> float:
    """Return the part of the token copies whose expert has its home on another node than their source rank."""
    size = plan.cluster.gpus_per_node
    home_node_LE, source_node_S = plan.home_rank_LE // size, plan.schedule.source_rank_S // size
    num_local = sum(
        int(counts_LE[home_node_LE == node].sum()) for counts_LE, node in zip(counts_SLE, source_node_S, strict=True)
    )
    return 1 - num_local / max(int(counts_SLE.sum(dtype=np.int64)), 1)


def pack_trace(
    trace: RoutingTrace,
    counts_SLE: NDArray[np.integer],
    model: Model,
    cluster: Cluster,
    params: PlanParams | None = None,
    num_micro_batches: int | None = None,
    token_budget: int | None = None,
) -> tuple[Packing, int, str]:
    """Pack the sequences of a trace into micro-batches; return the packing, its token budget, and the reason.

    Args:
        trace: the trace.
        counts_SLE: the result of `count_sequences` on the trace.
        model: the result of `model_of` on the trace.
        cluster: the EP groups.
        params: the planning parameters.
        num_micro_batches: by default the number of the trace's fixed schedule, or the default of `schedule_of`.
        token_budget: the most tokens of a source rank in a micro-batch; by default what the schedule without packing
            needs.

    Raises:
        InvalidInput: in the cases of `schedule_of` and `pack`.
    """
    from relibra.planning.packing.pack import pack  # loads numba

    length_S = np.diff(trace.offsets)
    if trace.schedule is None or num_micro_batches is None:
        start = schedule_of(trace, cluster, num_micro_batches)
    else:
        start = _deal(trace, cluster, num_micro_batches)
    if token_budget is None:
        token_budget = most_tokens(trace.schedule or start, length_S, cluster)
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
