"""The one queue before the solvers of all planners: steps that wait for a plan, and packings, as pages show it."""

from collections.abc import Iterable
from dataclasses import dataclass

from relibra.planning.plan import Level
from relibra.status.glance import JobGlance
from relibra.store import PackingState, StepState


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A step that is solved or packed, or waits for that."""

    job_id: str
    step: int
    state: str
    """`solving` or `packing` in a solver; else `queued for a plan` or `queued for packing`."""
    since: float
    """Unix time of its schedule, or since when the packing is in this state."""

    @property
    def waits(self) -> bool:
        """Whether no solver works on it."""
        return self.state.startswith("queued")


def queue_of(glances: Iterable[JobGlance]) -> list[QueueEntry]:
    """Return what solvers work on, and then what waits for one, the longest first.

    Jobs take turns, so what waits longest is not always next. A packing whose planner was killed leaves the queue when
    the driver submits its own schedule.
    """
    entries: list[QueueEntry] = []
    for glance in glances:
        for step in glance.steps:
            if step.state in (StepState.QUEUED, StepState.SOLVING) and step.submitted_at is not None:
                state = "queued for a plan" if step.state is StepState.QUEUED else str(step.state)
                entries.append(QueueEntry(job_id=glance.job_id, step=step.step, state=state, since=step.submitted_at))
        packing = glance.packing
        submitted = [step.step for step in glance.steps if step.level not in (None, Level.HISTORY)]
        if packing and packing.is_open and packing.step > max(submitted, default=-1):
            state = "queued for packing" if packing.state is PackingState.QUEUED else str(packing.state)
            entries.append(QueueEntry(job_id=glance.job_id, step=packing.step, state=state, since=packing.at))
    return sorted(entries, key=lambda entry: (entry.waits, entry.since, entry.job_id, entry.step))
