"""Plan a routing trace with no services running.

S sequences.
"""

from relibra.errors import InvalidInput
from relibra.planning.load import StepLoad
from relibra.planning.plan import Plan
from relibra.planning.schedule import Schedule
from relibra.planning.topology import Cluster, Model, PlanParams
from relibra.routing.counts import count_sequences
from relibra.routing.trace import RoutingTrace

_DEFAULT_MICRO_BATCHES = 16


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
    if num_micro_batches is None:
        num_micro_batches = min(_DEFAULT_MICRO_BATCHES, trace.num_sequences)
    if not 1 <= num_micro_batches <= trace.num_sequences:
        raise InvalidInput.of(
            "micro_batches", expected=f"1 to the {trace.num_sequences} sequences", got=num_micro_batches
        )
    return Schedule.round_robin(trace.num_sequences, num_micro_batches, cluster)


def load_of(trace: RoutingTrace, schedule: Schedule, cluster: Cluster) -> StepLoad:
    """Sum the routing of a trace into the cells of a schedule."""
    return StepLoad.of(count_sequences(trace), schedule, cluster)


def plan_trace(
    trace: RoutingTrace, schedule: Schedule, load: StepLoad, cluster: Cluster, params: PlanParams | None = None
) -> Plan:
    """Plan a trace under a schedule and the load it sums to.

    Raises:
        InvalidInput: as `solve`.
    """
    from relibra.planning.solve import solve  # loads numba: only who plans waits for it

    model = Model(num_layers=trace.num_layers, num_experts=trace.num_experts, top_k=trace.top_k)
    return solve(load, schedule, model, cluster, params)
