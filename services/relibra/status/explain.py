"""Why a step was planned and executed as it was, in sentences.

The planner's own reason says what each part of planning did; the prediction and the reports say what came of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from relibra.planning import Cause, Cluster
from relibra.planning.execution import Execution
from relibra.planning.plan import Level, Prediction
from relibra.status.balance import describe_fallbacks
from relibra.status.health import describe_missing_ranks
from relibra.status.realised import (
    describe_balance,
    describe_excess,
    describe_expectation,
    describe_intended,
    describe_memory,
)
from relibra.store import PlanRecord, StepRecord, StepState

_ADVICE = {
    Cause.LATE: "the plan came after `plan_timeout_s`: check how long planning took and when its schedule came",
    Cause.STALE: "these ranks applied a plan of a newer epoch before: was Redis restored from an older copy?",
    Cause.INVALID: "agent and planner disagree: compare their versions, and the registered model and cluster",
    Cause.DISAGREED: "ranks held different plans or were at different steps: was one trainer restarted alone?",
    Cause.UNDONE: "moving experts failed and every move was undone: the log of the named rank has the error",
    Cause.OTHER_LAUNCH: "another launch trains under the same job id: stop one of them, or give it another job id",
    Cause.UNSCHEDULED: "nobody scheduled the step, and not all ranks had the newest plan from earlier steps",
    Cause.MEASURING: "the agents choose this together, so the other cause says what happened",
    Cause.NOT_FASTER: "the agents choose this together, so the other cause says what happened",
    Cause.OBSERVING: "only some ranks have mode=observe: give all ranks the same settings",
    Cause.UNSPECIFIED: "agents of another version of relibra do not name a cause: read the reasons in their reports",
}
_CLOSE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An explanation of a step, in sentences."""

    headline: str
    placement: list[str]
    replicas: list[str]
    execution: list[str]


def explain(
    step: StepRecord,
    cluster: Cluster,
    executed: Sequence[Execution],
    applied: PlanRecord | None = None,
    *,
    is_over: bool = False,
) -> Explanation:
    """Explain one step.

    Args:
        step: the step.
        cluster: the EP groups of its job.
        executed: what its ranks did, by phase.
        applied: the plan that they applied, if it is kept.
        is_over: whether its attempt is over, so that nothing more will come of it.
    """
    return Explanation(
        headline=_headline(step, is_over=is_over),
        placement=[] if step.plan is None else _placement(step.plan.prediction),
        replicas=[] if step.plan is None else _replicas(step.plan.prediction, cluster),
        execution=_execution(step, executed, applied, is_over=is_over),
    )


def _headline(step: StepRecord, *, is_over: bool) -> str:
    if step.plan is not None:
        return step.plan.reason
    if step.state is StepState.FAILED:
        return f"there is no plan: {step.failure}; ranks keep the last plan"
    if step.state is StepState.UNSCHEDULED:
        return (
            "nobody scheduled the step, so it has no plan of its own: ranks use the newest plan that was made from the "
            "loads of earlier steps, if there is one"
        )
    if is_over:
        missing = "schedule" if step.state is StepState.COLLECTING else "plan"
        return (
            f"there is no plan: {step.num_sequences} sequences were reported, and the attempt ended before the step "
            f"had its {missing}"
        )
    if step.state in (StepState.QUEUED, StepState.SOLVING):
        come = "the schedule has arrived"
        if step.level is Level.HISTORY:
            come = "nobody scheduled the step, so it is planned from the loads of earlier steps"
        if step.state is StepState.SOLVING:
            return f"{come} and the plan is being solved"
        return (
            f"{come} and the step waits for a solver; if this takes longer than 30 s, no planner is running or all "
            "planners are busy with other jobs"
        )
    return f"{step.num_sequences} sequences have been reported; planning starts when the trainer submits the schedule"


def _placement(prediction: Prediction) -> list[str]:
    sentences = [
        f"No placement can bring imbalance below {prediction.imbalance_floor:.3f}; with this placement the bound is "
        f"{prediction.imbalance_bound:.3f}, and the plan reaches {prediction.imbalance_after:.3f}."
    ]
    if prediction.num_moved_experts:
        sentences.append(
            f"{prediction.num_moved_experts} experts move to another home rank, once, at the start of the step: "
            f"{_weigh(prediction.reorder_size_bytes, 'including optimizer state')}."
        )
    else:
        sentences.append("No expert moves: no move would gain more than it costs, or no placement is better.")
    memory = prediction.memory
    if memory is not None and memory.after.size_bytes is not None and memory.before.size_bytes is not None:
        after, before = write_size(memory.after.size_bytes), write_size(memory.before.size_bytes)
        budget = f"; the budget is {write_size(memory.budget_bytes)}" if memory.budget_bytes else ""
        sentences.append(f"Activations of experts take at most {after} of a rank, {before} without relibra{budget}.")
    return sentences


def _replicas(prediction: Prediction, cluster: Cluster) -> list[str]:
    if not cluster.redundant_slots:
        return ["There are no replicas: the job has no redundant slots."]
    if not prediction.num_replicas:
        return ["There are no replicas: none would save the slowest rank more time than its transfer and weights cost."]
    sentences = [
        f"{prediction.num_replicas} replicas take tokens off ranks that would be slowest, each for one micro-batch "
        f"and layer; {_weigh(prediction.replica_size_bytes, 'of weights travel within nodes')}."
    ]
    if prediction.level < Level.MICRO_BATCHES:
        sentences.append(
            "All micro-batches have the same replicas, chosen so that tokens can be split evenly whatever comes."
        )
    elif prediction.imbalance_after > prediction.imbalance_bound * _CLOSE:
        or_dispatch = "" if prediction.time_us is None else ", or that make dispatch slower"
        sentences.append(
            f"Closing the remaining gap to the bound would need replicas that cost more than they save{or_dispatch}."
        )
    return sentences


def _weigh(size_bytes: int | None, what: str) -> str:
    if size_bytes is None:
        return (
            "size unknown, so planning cannot weigh these transfers (register expert_weight_size_bytes and "
            "expert_state_size_bytes)"
        )
    return f"{write_size(size_bytes)} {what}"


def _execution(
    step: StepRecord, executed: Sequence[Execution], applied: PlanRecord | None, *, is_over: bool
) -> list[str]:
    if not executed:
        waiting = "No rank has reported yet: ranks report when the step ends."
        never = "No rank reported: the attempt ended before the step did."
        return [never if is_over else waiting] if step.plan else []
    sentences = _other_plan(step, executed, applied)
    for execution in executed:
        if text := describe_fallbacks(execution):
            sentences += [f"{text}.", *(f"{cause}: {_ADVICE[cause]}." for cause in execution.fallbacks)]
        if Cause.LATE in execution.fallbacks and step.plan is not None and step.plan.latency_s is not None:
            sentences.append(
                f"The plan was ready {step.plan.latency_s:.1f} s after its schedule; the rank that waited longest "
                f"waited {execution.plan_wait_s:.1f} s."
            )
        if execution.num_applied == execution.num_expected:
            sentences.append(f"All {execution.num_expected} ranks applied the plan in phase {execution.phase}.")
        said = (
            describe_intended(execution),
            describe_missing_ranks(execution),
            describe_balance(execution),
            describe_excess(execution, applied) or describe_expectation(execution, applied),
            describe_memory(execution, applied),
        )
        sentences += [f"{text[:1].upper()}{text[1:]}." for text in said if text]
    return sentences


def _other_plan(step: StepRecord, executed: Sequence[Execution], applied: PlanRecord | None) -> list[str]:
    """Return which plan the ranks applied, if it is not the plan that the step has now."""
    plan_id = next((execution.applied for execution in executed if execution.applied is not None), None)
    if plan_id is None or (step.plan is not None and step.plan.id == plan_id):
        return []
    if applied is None:
        return [f"Ranks applied plan {plan_id}, which has expired or was replaced."]
    why = "nobody scheduled the step" if step.plan is None else "the plan of this step came after they had begun"
    return [f"Ranks applied plan {plan_id} of step {applied.step}, the newest from history, because {why}."]


def write_size(size_bytes: float | None) -> str:
    """Return a number of bytes as text; None is a size that the job did not register."""
    if size_bytes is None:
        return "size unknown (register expert_weight_size_bytes)"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.3g} {unit}" if unit != "B" else f"{size_bytes:.0f} B"
        size_bytes /= 1024
    return f"{size_bytes:.3g} TiB"
