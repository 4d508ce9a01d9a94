"""The state of a job and the reason for it, as a pure decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from types import MappingProxyType

from relibra.errors import Corrupt
from relibra.planning import Phase
from relibra.planning.execution import Execution
from relibra.planning.plan import Level
from relibra.status.balance import Balance, Obstacle
from relibra.status.realised import describe_balance, describe_excess, describe_intended, last_complete
from relibra.store import PlanRecord, StepRecord, StepState
from relibra.store.attempts import write_duration

_SLOW_SOLVE_S = 30.0
_MAX_NAMED_RANKS = 8
_STALL_FACTOR = 5
_STALL_S = 120.0
"""A job is silent if no plan came for this long, and for `_STALL_FACTOR` times its usual step time."""


class JobState(StrEnum):
    """The state of a job, worst first."""

    FAILING = "failing"
    """A step has no plan and will not get one without help."""
    STALLED = "stalled"
    """A step has started but has not progressed for far longer than steps usually take."""
    UNBALANCED = "unbalanced"
    """The newest steps are trained without their plans, on some or all ranks."""
    ATTENTION = "attention"
    """Training continues, but slower than it could."""
    WAITING = "waiting"
    """Nothing is wrong and no step is in progress: the job has not begun one, or it died."""
    WELL = "well"
    ENDED = "ended"
    """The training said that it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHealth:
    """The state of a job and the reason for it."""

    verdict: JobState
    reason: str


def judge_health(
    steps: Sequence[StepRecord],
    executed_step: StepRecord | None,
    executed: Sequence[Execution],
    balance: Balance,
    now: float,
    attempt: int = 1,
    damaged: Mapping[int, Corrupt] = MappingProxyType({}),
    applied: PlanRecord | None = None,
) -> JobHealth:
    """Return the state of a job, from the steps of one attempt alone.

    Args:
        steps: the newest steps of the job, newest first.
        executed_step: the newest step that has reports, if any.
        executed: what the ranks did in `executed_step`, by phase.
        balance: since when the job has not been balanced, if it is not.
        now: Unix time in seconds.
        attempt: the number of the attempt.
        damaged: those of `steps` with a report that is not the one that was stored. Nothing is known about what their
            ranks did.
        applied: the plan that the ranks applied in `executed_step`, if it is kept.
    """
    if failing := _describe_failure(steps, now):
        return JobHealth(verdict=JobState.FAILING, reason=_with_share(failing, balance))
    silence, newest = _describe_silence(steps, now), _find_begun(steps, executed_step)
    if silence and newest and newest.step not in damaged and not _is_done(newest, executed_step, executed):
        standstill = _describe_standstill(newest, executed_step, executed)
        return JobHealth(verdict=JobState.STALLED, reason=f"{silence}: {standstill}")
    if balance.since_step is not None:
        reason = f"not balancing since step {balance.since_step}, because {balance.reason}"
        is_choice = balance.obstacle is Obstacle.NOT_FASTER
        return JobHealth(
            verdict=JobState.ATTENTION if is_choice else JobState.UNBALANCED, reason=_with_share(reason, balance)
        )
    if not steps:
        begun = "registered" if attempt == 1 else f"attempt {attempt} has begun"
        return JobHealth(verdict=JobState.WAITING, reason=f"{begun}, but no step has been reported yet")
    if damaged:
        newest_damaged = max(damaged)
        reason = f"what ranks did in step {newest_damaged} cannot be read: {damaged[newest_damaged]}"
        return JobHealth(verdict=JobState.ATTENTION, reason=_with_share(reason, balance))
    if executed_step is not None:
        for execution in executed:
            trouble = describe_missing_ranks(execution)
            if trouble := trouble or describe_excess(execution, applied):
                reason = _with_share(f"step {executed_step.step}: {trouble}", balance)
                return JobHealth(verdict=JobState.ATTENTION, reason=reason)
    if balance.share:
        return JobHealth(verdict=JobState.ATTENTION, reason=f"{balance.share}; the newest one used its plan")
    if silence and newest:
        rest = f"all ranks reported step {newest.step}, but no later step has started; did the job die?"
        return JobHealth(verdict=JobState.WAITING, reason=f"{silence}: {rest}")
    return _describe_progress(steps[0], executed_step, executed, is_planning=any(step.plan for step in steps))


def _describe_progress(
    newest: StepRecord, executed_step: StepRecord | None, executed: Sequence[Execution], *, is_planning: bool
) -> JobHealth:
    """Return how far a job has come of which nothing is wrong: by real loads once there are any."""
    phase = last_complete(executed)
    if executed_step is not None and phase is not None:
        text = describe_intended(phase) or describe_balance(phase)
        return JobHealth(verdict=JobState.WELL, reason=f"step {executed_step.step}: {text}")
    if newest.plan is not None:
        prediction = newest.plan.prediction
        change = f"imbalance falls from {prediction.imbalance_before:.3f} to {prediction.imbalance_after:.3f}"
        return JobHealth(verdict=JobState.WELL, reason=f"step {newest.step} is planned; {change}")
    sequences = f", {newest.num_sequences} sequences so far" if newest.num_sequences else ""
    reason = f"step {newest.step} is {newest.state}{sequences}"
    return JobHealth(verdict=JobState.WELL if is_planning else JobState.WAITING, reason=reason)


def _describe_failure(steps: Sequence[StepRecord], now: float) -> str | None:
    """Return which step will not get a plan without help, and why, or None; steps before the newest plan are over."""
    for step in steps:
        if step.failure is not None and step.plan is None:
            return f"step {step.step} cannot be planned: {step.failure}"
        if step.state in (StepState.QUEUED, StepState.SOLVING) and step.submitted_at is not None:
            waited_s = now - step.submitted_at
            if waited_s > _SLOW_SOLVE_S:
                why = "is a planner running?" if step.state is StepState.QUEUED else "it is being solved"
                return f"step {step.step} has waited {write_duration(waited_s)} for its plan: {why}"
        if step.plan is not None:
            break
    return None


def _with_share(reason: str, balance: Balance) -> str:
    return f"{reason}; {balance.share}" if balance.share else reason


def _describe_silence(steps: Sequence[StepRecord], now: float) -> str | None:
    """Return how long no plan has come, as a phrase, or None if that is usual for this job."""
    published = [step.plan.published_at for step in steps if step.plan is not None]
    if len(published) < 3:
        return None
    usual_s = median(later - earlier for later, earlier in pairwise(published))
    silent_s = now - published[0]
    if silent_s <= max(_STALL_S, _STALL_FACTOR * usual_s):
        return None
    return f"no plan for {write_duration(silent_s)} (usually one every {write_duration(usual_s)})"


def _find_begun(steps: Sequence[StepRecord], executed_step: StepRecord | None) -> StepRecord | None:
    """Return the newest step that has begun as far as is known, or None.

    A step is planned from history as soon as the step before it ends, and begins when its ranks report.
    """
    reported = -1 if executed_step is None else executed_step.step
    return next((step for step in steps if step.level is not Level.HISTORY or step.step <= reported), None)


def _is_done(newest: StepRecord, executed_step: StepRecord | None, executed: Sequence[Execution]) -> bool:
    """Return whether all ranks have reported the update, which ends a step."""
    return (
        executed_step is not None
        and executed_step.step == newest.step
        and any(execution.phase is Phase.UPDATE for execution in executed)
        and not any(execution.missing for execution in executed)
    )


def _describe_standstill(newest: StepRecord, executed_step: StepRecord | None, executed: Sequence[Execution]) -> str:
    """Return where a silent job stands and what to check."""
    if newest.plan is None:
        return (
            f"step {newest.step} has {newest.num_sequences} sequences but no schedule; check the rollout workers, "
            "then the training driver"
        )
    if executed_step is None or executed_step.step != newest.step:
        return f"step {newest.step} is planned but no rank has reported; check the trainers"
    for execution in executed:
        if text := describe_missing_ranks(execution):
            return f"step {newest.step}: {text}; check the logs of the missing ranks"
    return f"no rank has reported phase {Phase.UPDATE} of step {newest.step}; check the trainers"


def describe_missing_ranks(execution: Execution) -> str | None:
    """Return which ranks have not reported a phase that others have, or None if no rank is missing."""
    if not execution.missing:
        return None
    named = ", ".join(_name(rank, execution.num_ep_groups) for rank in execution.missing[:_MAX_NAMED_RANKS])
    rest = ", ..." if len(execution.missing) > _MAX_NAMED_RANKS else ""
    return (
        f"{execution.num_reports} of {execution.num_expected} ranks reported phase {execution.phase}; "
        f"missing: {named}{rest}"
    )


def _name(group_and_rank: tuple[int, int], num_ep_groups: int) -> str:
    group, rank = group_and_rank
    return f"rank {rank} of group {group}" if num_ep_groups > 1 else f"rank {rank}"
