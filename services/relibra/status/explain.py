"""Why a step is what it is, in plain words.

The planner's own reason says what each part of planning did; the forecast and the reports say what came of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from relibra.planning import Cause, Cluster
from relibra.planning.execution_sum import Execution
from relibra.planning.plan import Basis, Prediction
from relibra.status.health import absence, excess, fallback
from relibra.store import StepRecord, StepState

_ADVICE = {
    Cause.LATE: "the plan came after `plan_timeout_s`: look at how long it took, and at when the schedule is submitted",
    Cause.STALE: "the job was registered anew, and those ranks still follow the newer epoch",
    Cause.INVALID: "agent and planner disagree: compare their versions, and the registered model and cluster",
    Cause.DISAGREED: "ranks looked at different moments or steps: look for a trainer that was restarted alone",
    Cause.UNDONE: "moving experts failed and nothing was moved: the log of the named rank has the error",
    Cause.UNSPECIFIED: "agents of another version of relibra do not name a cause: read the reasons in their reports",
}
_CLOSE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Sentences for people."""

    headline: str
    placement: list[str]
    replicas: list[str]
    execution: list[str]


def explain(step: StepRecord, cluster: Cluster, executed: Sequence[Execution]) -> Explanation:
    """Explain one step."""
    return Explanation(
        headline=_headline(step),
        placement=[] if step.plan is None else _placement(step.plan.prediction),
        replicas=[] if step.plan is None else _replicas(step.plan.prediction, cluster),
        execution=_execution(step, executed),
    )


def _headline(step: StepRecord) -> str:
    if step.plan is not None:
        return step.plan.reason
    if step.state is StepState.FAILED:
        return f"there is no plan: {step.failure}; ranks keep the previous placement, without replicas"
    if step.state is StepState.SOLVING:
        return (
            f"the schedule of {step.num_sequences} sequences is here, and the plan is being solved; if that takes half "
            "a minute, no planner runs or all have other jobs to solve"
        )
    return f"{step.num_sequences} sequences are reported; planning begins when the trainer submits the schedule"


def _placement(prediction: Prediction) -> list[str]:
    sentences = [
        f"No placement whatever gets below {prediction.imbalance_floor:.3f}; under this one the bound is "
        f"{prediction.imbalance_bound:.3f}, and the plan reaches {prediction.imbalance_after:.3f}."
    ]
    if prediction.num_moved_experts:
        moved = (
            f"{prediction.num_moved_experts} experts move to another home, {size_text(prediction.reorder_size_bytes)}"
        )
        sentences.append(f"{moved} with their optimizer state, once, at the start of the step.")
    else:
        sentences.append("No expert moves: no move gains more than it costs, or the placement is as good as any.")
    return sentences


def _replicas(prediction: Prediction, cluster: Cluster) -> list[str]:
    if not cluster.redundant_slots:
        return ["There are no replicas: the job has no redundant slots."]
    if not prediction.num_replicas:
        return ["There are no replicas: none saves the slowest rank more time than its transfer and weights cost."]
    sentences = [
        f"{prediction.num_replicas} replicas take tokens from ranks that would be slowest, each for one micro-batch "
        f"and layer; their weights are {size_text(prediction.replica_size_bytes)}, inside nodes."
    ]
    if prediction.basis is Basis.PREVIOUS_STEPS:
        sentences.append("Loads are expected and not known: slots are used so that no rank depends on a single expert.")
    elif prediction.imbalance_after > prediction.imbalance_bound * _CLOSE:
        sentences.append("What is left above the bound would take replicas that cost more than they save.")
    return sentences


def _execution(step: StepRecord, executed: Sequence[Execution]) -> list[str]:
    if not executed:
        return ["No rank has reported yet: ranks report when a phase ends."] if step.plan else []
    sentences = []
    for execution in executed:
        if text := fallback(execution):
            sentences += [f"{text}.", *(f"{cause}: {_ADVICE[cause]}." for cause in execution.fallbacks)]
        if Cause.LATE in execution.fallbacks and step.plan is not None and step.plan.latency_s is not None:
            sentences.append(
                f"The plan was there {step.plan.latency_s:.1f} s after its schedule; the rank that waited longest "
                f"waited {execution.plan_wait_s:.1f} s."
            )
        if text := absence(execution) or excess(execution, step):
            sentences.append(f"{text}.")
        if not execution.num_fallbacks and not execution.missing:
            realised = "" if execution.imbalance is None else f"; imbalance was {execution.imbalance:.3f}"
            sentences.append(f"All {execution.num_expected} ranks applied it in phase {execution.phase}{realised}.")
    return sentences


def size_text(size_bytes: float) -> str:
    """Say a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.3g} {unit}" if unit != "B" else f"{size_bytes:.0f} B"
        size_bytes /= 1024
    return f"{size_bytes:.3g} TiB"
