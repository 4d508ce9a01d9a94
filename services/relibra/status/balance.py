"""Since when a job has not been balanced, and why, as a pure decision from typed records (S9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile

from relibra.planning import Cause
from relibra.planning.execution import Execution
from relibra.store import Refusal, Refused, StepRecord, StepState

GLANCE_STEPS = 24
"""The number of newest steps that decide the state of a job: more than rollouts may be ahead (`max_open_steps`)."""
NUM_JUDGED = 12
"""How many of them count as executed recently, the newest ones that have reports."""
_UNSCHEDULED_STEPS = 12
"""So many steps in a row without any schedule mean that the driver submits none."""
_NEVER_REPORTED_STEPS = 3
"""So many planned steps before the newest one mean that no rank reports at all, if none has reported any step."""
_UNREPORTED_STEPS = 8
"""The same after a step with reports: schedules may be submitted some steps ahead of training."""


class Obstacle(StrEnum):
    """Why a step is trained without a plan. Metrics and alerts use these values."""

    REFUSED_SEQUENCES = "refused_sequences"
    """The planner refused the step's sequences, and has none of them."""
    REFUSED_SCHEDULE = "refused_schedule"
    """The planner refused the step's schedule."""
    REFUSED_REPORTS = "refused_reports"
    """The planner refused the reports of a step, so nobody knows whether its ranks use their plans."""
    UNSCHEDULED = "unscheduled"
    """The step has sequences, but no schedule came."""
    UNPLANNABLE = "unplannable"
    """The step cannot be planned."""
    UNSOLVED = "unsolved"
    """The plan was not published when the ranks needed it."""
    FELL_BACK = "fell_back"
    """Ranks kept the last plan, although there is a newer one or nobody had to make one."""
    UNREPORTED = "unreported"
    """There are plans, but no rank reports, so probably no rank uses them."""
    NOT_FASTER = "not_faster"
    """The agents run steps plain, because they measured that planned ones are not faster (N1)."""


_BY_STATE = {
    StepState.UNSCHEDULED: Obstacle.FELL_BACK,
    StepState.COLLECTING: Obstacle.UNSCHEDULED,
    StepState.QUEUED: Obstacle.UNSOLVED,
    StepState.SOLVING: Obstacle.UNSOLVED,
    StepState.FAILED: Obstacle.UNPLANNABLE,
    StepState.PLANNED: Obstacle.FELL_BACK,
}
_BY_REFUSAL = {
    Refused.SEQUENCES: Obstacle.REFUSED_SEQUENCES,
    Refused.SCHEDULE: Obstacle.REFUSED_SCHEDULE,
    Refused.REPORTS: Obstacle.REFUSED_REPORTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Whether the newest steps of a job ran under their plans."""

    since_step: int | None = None
    """The first of the newest steps in a row without a plan; None while the job is balanced."""
    obstacle: Obstacle | None = None
    """Why the newest of these steps has no plan."""
    reason: str = ""
    """The same for people: what happened and what to check. Empty while the job is balanced."""
    num_executed: int = 0
    """The newest steps that ranks reported, at most `NUM_JUDGED`."""
    num_without_plan: int = 0
    """How many of these steps ran without a plan on some rank."""

    @property
    def share(self) -> str | None:
        """Say how many of the newest steps ran without a plan; None if all of them had one."""
        if not self.num_without_plan:
            return None
        return f"{self.num_without_plan} of the last {self.num_executed} steps ran without a plan"


def judge_balance(
    steps: Sequence[StepRecord],
    executed: Sequence[tuple[StepRecord, Sequence[Execution]]],
    refusals: Sequence[Refusal],
) -> Balance:
    """Return since when a job has not been balanced, and why.

    Args:
        steps: the newest steps of the job, newest first, at most `GLANCE_STEPS`.
        executed: those of them that have reports, with what the ranks did, by phase.
        refusals: what the planner refused since it last accepted a schedule.
    """
    executed = executed[:NUM_JUDGED]
    without = [(step, phases) for step, phases in executed if _is_without_plan(phases)]
    num_executed, num_without_plan = len(executed), len(without)
    if refusal := next((counted for counted in refusals if _leaves_unplanned(counted, steps, executed)), None):
        since_step, obstacle = refusal.since_step, _BY_REFUSAL[refusal.what]
        reason = f"the planner refuses the {refusal.what} of step {refusal.step}: {refusal.text}"
    elif unreported := _find_unreported(steps, executed):
        since_step, obstacle = unreported[-1].step, Obstacle.UNREPORTED
        reason = (
            f"no rank has reported steps {since_step} to {unreported[0].step}, although they have plans; is the agent "
            "attached on all ranks, and can they reach a planner?"
        )
    elif executed and _is_without_plan(executed[0][1]):
        row = list(takewhile(lambda step_and_phases: _is_without_plan(step_and_phases[1]), executed))
        newest, phases = executed[0]
        since_step, obstacle = row[-1][0].step, _BY_STATE[newest.state]
        reason = _explain_missing_plan(newest, phases)
    elif executed and (measured := _find_not_faster(executed[0][1])):
        row = list(takewhile(lambda step_and_phases: _find_not_faster(step_and_phases[1]), executed))
        since_step, obstacle = row[-1][0].step, Obstacle.NOT_FASTER
        reason = f"step {executed[0][0].step}: {'; '.join(measured.reasons)}"
    elif len(steps) >= _UNSCHEDULED_STEPS and all(step.state is StepState.COLLECTING for step in steps):
        since_step, obstacle = steps[-1].step, Obstacle.UNSCHEDULED
        reason = (
            f"the last {len(steps)} steps have sequences, but no schedule came for any of them; does the training "
            "driver submit schedules under this job id?"
        )
    else:
        return Balance(num_executed=num_executed, num_without_plan=num_without_plan)
    return Balance(
        since_step=since_step,
        obstacle=obstacle,
        reason=reason,
        num_executed=num_executed,
        num_without_plan=num_without_plan,
    )


def _find_unreported(
    steps: Sequence[StepRecord], executed: Sequence[tuple[StepRecord, Sequence[Execution]]]
) -> Sequence[StepRecord]:
    """Return the planned steps that ranks should have reported, newest first; none if training may only lag behind."""
    newest_executed = executed[0][0].step if executed else -1
    # The newest planned step may be in progress.
    planned = [step for step in steps if step.plan is not None and step.step > newest_executed][1:]
    return planned if len(planned) >= (_UNREPORTED_STEPS if executed else _NEVER_REPORTED_STEPS) else []


def _is_without_plan(phases: Sequence[Execution]) -> bool:
    return any(phase.num_fallbacks for phase in phases)


def _find_not_faster(phases: Sequence[Execution]) -> Execution | None:
    return next((phase for phase in phases if Cause.NOT_FASTER in phase.intended), None)


def _leaves_unplanned(
    refusal: Refusal, steps: Sequence[StepRecord], executed: Sequence[tuple[StepRecord, Sequence[Execution]]]
) -> bool:
    """Return whether a refusal leaves a step without a plan; that of a straggler or of another launch does not.

    Sequences of one step before the newest planned one are a straggler's, and those of several are of a job that
    repeats steps.
    """
    if refusal.what not in _BY_REFUSAL:
        return False
    if refusal.what is Refused.SEQUENCES:
        newest_planned = next((step.step for step in steps if step.plan is not None), -1)
        if refusal.step <= newest_planned and refusal.step == refusal.since_step:
            return False
        return not any(step.step == refusal.step and step.num_sequences for step in steps)
    if refusal.what is Refused.REPORTS:
        return not executed or refusal.step > executed[0][0].step
    return True


def _explain_missing_plan(step: StepRecord, phases: Sequence[Execution]) -> str:
    match step.state:
        case StepState.COLLECTING:
            return f"step {step.step} has {step.num_sequences} sequences and no schedule; check the training driver"
        case StepState.FAILED:
            return f"step {step.step} cannot be planned: {step.failure}"
        case StepState.QUEUED | StepState.SOLVING:
            return f"the plan of step {step.step} was not ready when ranks needed it; are planners running and idle?"
        case StepState.PLANNED | StepState.UNSCHEDULED:
            worst = max(phases, key=lambda phase: phase.num_fallbacks)
            return f"step {step.step}: {describe_fallbacks(worst)}"


def describe_fallbacks(execution: Execution) -> str | None:
    """Return how many ranks fell back and why, or None if no rank did."""
    if not execution.num_fallbacks:
        return None
    causes = ", ".join(f"{number} {cause}" for cause, number in execution.fallbacks.items())
    return (
        f"{execution.num_fallbacks} of {execution.num_expected} ranks kept the last plan in phase "
        f"{execution.phase} ({causes})"
    )
