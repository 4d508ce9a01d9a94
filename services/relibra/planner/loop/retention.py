"""Which steps lose their full data, as a pure decision. A summary of each stays.

Steps expire oldest first, by three limits: the number of steps of an attempt, the bytes of a job, and age.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from relibra.store import ExpiryCause, RetainedStep
from relibra.store.keys import RETAINED_ATTEMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """How much full data of steps stays; the settings of the same names say more."""

    retained_steps: int
    retained_s: float
    retained_bytes: int
    num_fetchable: int
    """How many of the newest planned steps agents may still want to fetch."""


Expiries = list[dict[RetainedStep, ExpiryCause]]
"""For each attempt, newest first: the steps to expire, and why."""


def summaries_to_drop(sizes_bytes: Sequence[int], limits: RetentionLimits) -> list[int]:
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
    attempts: Sequence[Sequence[RetainedStep]], silent_s: float, limits: RetentionLimits, summaries_bytes: int = 0
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
        steps = sorted(unsorted, key=lambda each: each.step)
        needed = set() if number else _needed(steps, silent_s, limits)
        spare.append([each for each in steps if each.step not in needed])
        newest = {each.step for each in steps[-limits.retained_steps :]}
        causes: dict[RetainedStep, ExpiryCause] = {}
        for each in spare[-1]:
            if number >= RETAINED_ATTEMPTS:
                causes[each] = ExpiryCause.ATTEMPTS
            elif each.step not in newest:
                causes[each] = ExpiryCause.STEPS
            elif each.age_s > limits.retained_s:
                causes[each] = ExpiryCause.AGE
        expiries.append(causes)
    kept_bytes = summaries_bytes + sum(each.size_bytes for steps in attempts for each in steps)
    kept_bytes -= sum(each.size_bytes for causes in expiries for each in causes)
    for steps, causes in zip(reversed(spare), reversed(expiries), strict=True):
        for each in steps:
            if each not in causes and kept_bytes > limits.retained_bytes:
                causes[each] = ExpiryCause.BYTES
                kept_bytes -= each.size_bytes
    return expiries


def _needed(steps: Sequence[RetainedStep], silent_s: float, limits: RetentionLimits) -> set[int]:
    """Return the steps of the current attempt, given oldest first, that must stay."""
    ended = [each.step for each in steps if not each.is_open and not each.is_pending]
    newest_ended = ended[-1] if ended else -1
    # An open step before the newest one that ended was abandoned: its schedule never came.
    needed = {each.step for each in steps if each.is_pending or (each.is_open and each.step > newest_ended)}
    needed.update([each.step for each in steps if each.is_planned][-1:])
    if silent_s <= limits.retained_s:
        needed.update(ended[-min(limits.num_fetchable, limits.retained_steps) :])
    return needed
