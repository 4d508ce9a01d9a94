"""The order of the jobs on the overview page, and which of them it shows."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from relibra.status.glance import JobGlance
from relibra.status.health import JobState

_URGENCY = (
    JobState.FAILING,
    JobState.STALLED,
    JobState.UNBALANCED,
    JobState.ATTENTION,
    JobState.WELL,
    JobState.WAITING,
)
"""Jobs that train stand above those that wait, because many of those have ended and were never removed."""


_MAX_WAITING = 10
"""How many jobs that wait the overview shows if nobody asked for them."""


class Order(StrEnum):
    """What the overview sorts by."""

    STATE = "state"
    """The worst state first; within a state, the attempt that began last first."""
    NAME = "name"
    NEWEST = "newest"
    """The attempt that began last first."""


def arrange(glances: Sequence[JobGlance], state: JobState | None, text: str, order: Order) -> list[JobGlance]:
    """Return the jobs to show, in the order to show them.

    Args:
        glances: all jobs that the viewer may see.
        state: the state of the jobs to show; None for any.
        text: a part of the job id or of the owner, in any case.
        order: what to sort by.
    """
    wanted = text.strip().lower()
    found = [
        each
        for each in glances
        if state in (None, each.health.verdict)
        and (wanted in each.job.job_id.lower() or wanted in each.job.owner.lower())
    ]
    if order is Order.NAME:
        return sorted(found, key=lambda each: (each.job.job_id.lower(), each.job.job_id))
    found.sort(key=lambda each: -each.job.registered_at)
    if order is Order.STATE:
        found.sort(key=lambda each: _URGENCY.index(each.health.verdict))
    return found


def fold(glances: Sequence[JobGlance]) -> tuple[list[JobGlance], int]:
    """Leave out all but the first few jobs that wait; return the others, and how many were left out."""
    waiting = [each for each in glances if each.health.verdict is JobState.WAITING][_MAX_WAITING:]
    left_out = {id(each) for each in waiting}
    return [each for each in glances if id(each) not in left_out], len(left_out)


def count_states(glances: Sequence[JobGlance]) -> list[tuple[JobState, int]]:
    """Return how many jobs are in each state that occurs, the most urgent first."""
    numbers = Counter(each.health.verdict for each in glances)
    return [(state, numbers[state]) for state in _URGENCY if numbers[state]]
