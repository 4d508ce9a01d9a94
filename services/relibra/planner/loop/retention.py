"""Which steps lose their full data, as a pure decision. A summary of each stays.

Steps expire oldest first, by three limits: the number of steps of an attempt, the bytes of a job, and age.
"""

from collections.abc import Sequence

from relibra.planner.settings import PlannerSettings
from relibra.store import ExpiryCause, RetainedStep
from relibra.store.keys import RETAINED_ATTEMPTS

Expiries = list[dict[RetainedStep, ExpiryCause]]
"""For each attempt, newest first: the steps to expire, and why."""


def summaries_to_drop(sizes_bytes: Sequence[int], limits: PlannerSettings) -> list[int]:
    """Return the attempts of a job that lose the summaries of their steps, so that the full data of steps has room.

    Summaries may take half of `retained_bytes`. Those of the oldest attempt go first, those of the current one never.

    Args:
        sizes_bytes: what the summaries of each attempt take, the current attempt first.
        limits: how much may stay.
    """
    dropped, kept_bytes = [], sum(sizes_bytes)
    for number in range(len(sizes_bytes) - 1, 0, -1):
        if sizes_bytes[number] and kept_bytes > limits.retained_bytes // 2:
            dropped.append(number)
            kept_bytes -= sizes_bytes[number]
    return dropped


def steps_to_expire(
    attempts: Sequence[Sequence[RetainedStep]], silent_s: float, limits: PlannerSettings, summaries_bytes: int = 0
) -> Expiries:
    """Return the steps that expire now.

    In the current attempt some steps stay whatever the limits say: those under way, the newest planned one, whose
    placement the next plan starts from, and, while the attempt is alive, those that agents may still fetch.

    Args:
        attempts: the steps of each attempt of a job whose full data is kept, the current attempt first.
        silent_s: how long ago the current attempt was heard.
        limits: how much may stay.
        summaries_bytes: what the summaries of the job take; they count into `retained_bytes`.
    """
    expiries: Expiries = []
    spare: list[list[RetainedStep]] = []
    for number, unsorted in enumerate(attempts):
        steps = sorted(unsorted, key=lambda step: step.step)
        needed = set() if number else _choose_needed(steps, silent_s, limits)
        spare.append([step for step in steps if step.step not in needed])
        newest = {step.step for step in steps[-limits.retained_steps :]}
        causes: dict[RetainedStep, ExpiryCause] = {}
        for step in spare[-1]:
            if number >= RETAINED_ATTEMPTS:
                causes[step] = ExpiryCause.ATTEMPTS
            elif step.step not in newest:
                causes[step] = ExpiryCause.STEPS
            elif step.age_s > limits.retained_s:
                causes[step] = ExpiryCause.AGE
        expiries.append(causes)
    kept_bytes = summaries_bytes + sum(step.size_bytes for steps in attempts for step in steps)
    kept_bytes -= sum(step.size_bytes for causes in expiries for step in causes)
    for steps, causes in zip(reversed(spare), reversed(expiries), strict=True):
        for step in steps:
            if step not in causes and kept_bytes > limits.retained_bytes:
                causes[step] = ExpiryCause.BYTES
                kept_bytes -= step.size_bytes
    return expiries


def _choose_needed(steps: Sequence[RetainedStep], silent_s: float, limits: PlannerSettings) -> set[int]:
    """Return the steps of the current attempt, given oldest first, that must stay."""
    ended = [step.step for step in steps if not step.is_open and not step.is_pending]
    newest_ended = ended[-1] if ended else -1
    # An open step before the newest one that ended was abandoned: its schedule never came.
    needed = {step.step for step in steps if step.is_pending or (step.is_open and step.step > newest_ended)}
    needed.update([step.step for step in steps if step.is_planned][-1:])
    if silent_s <= limits.retained_s:
        # Agents may still fetch as many as may be scheduled ahead of training.
        needed.update(ended[-min(limits.max_open_steps, limits.retained_steps) :])
    return needed
