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
    JobState.ENDED,
)
"""Jobs that train stand above those that wait or ended, which may be many."""


_MAX_AT_REST = 10
"""The overview shows at most so many waiting jobs, and so many ended jobs, unless a reader asks for them."""


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
    shown = [
        glance
        for glance in glances
        if state in (None, glance.health.verdict)
        and (wanted in glance.job.job_id.lower() or wanted in glance.job.owner.lower())
    ]
    if order is Order.NAME:
        return sorted(shown, key=lambda glance: (glance.job.job_id.lower(), glance.job.job_id))
    shown.sort(key=lambda glance: -glance.job.began_at)
    if order is Order.STATE:
        shown.sort(key=lambda glance: _URGENCY.index(glance.health.verdict))
    return shown


def fold(glances: Sequence[JobGlance]) -> tuple[list[JobGlance], dict[JobState, int]]:
    """Leave out all but the first few jobs that wait or ended; return the others, and how many were left out."""
    left_out: dict[int, JobState] = {}
    for state in (JobState.WAITING, JobState.ENDED):
        at_rest = [glance for glance in glances if glance.health.verdict is state]
        left_out |= {id(glance): state for glance in at_rest[_MAX_AT_REST:]}
    return [glance for glance in glances if id(glance) not in left_out], Counter(left_out.values())


def count_states(glances: Sequence[JobGlance]) -> list[tuple[JobState, int]]:
    """Return the number of jobs in every state that occurs, the most urgent state first."""
    numbers = Counter(glance.health.verdict for glance in glances)
    return [(state, numbers[state]) for state in _URGENCY if numbers[state]]
