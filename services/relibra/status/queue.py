"""The one queue before the solvers of all planners: steps that wait for a plan, and packings, as pages show it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from relibra.planning.plan import Level
from relibra.status.glance import JobGlance
from relibra.store import PackingState, StepState


class Work(StrEnum):
    """What a solver is to make."""

    PLAN = "plan"
    PACKING = "packing"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """A plan or a packing of a step that a solver makes, or that waits for one."""

    job_id: str
    step: int
    work: Work
    waits: bool
    """Whether no solver works on it."""
    since: float
    """Unix time: for a plan, of its schedule; for a packing, when it began to wait or to be made."""


def queue_of(glances: Iterable[JobGlance]) -> list[QueueEntry]:
    """Return what solvers make, and then what waits for one, the longest first.

    Jobs take turns, so what waits longest is not always next. A packing whose planner was killed leaves the queue when
    the driver submits its own schedule.
    """
    entries = [entry for glance in glances for entry in (*_plans(glance), *_packing(glance))]
    return sorted(entries, key=lambda entry: (entry.waits, entry.since, entry.job_id, entry.step))


def _plans(glance: JobGlance) -> Iterator[QueueEntry]:
    for step in glance.steps:
        if step.state in (StepState.QUEUED, StepState.SOLVING) and step.submitted_at is not None:
            yield QueueEntry(
                job_id=glance.job_id,
                step=step.step,
                work=Work.PLAN,
                waits=step.state is StepState.QUEUED,
                since=step.submitted_at,
            )


def _packing(glance: JobGlance) -> Iterator[QueueEntry]:
    packing = glance.packing
    submitted = [step.step for step in glance.steps if step.level not in (None, Level.HISTORY)]
    if packing and packing.is_open and packing.step > max(submitted, default=-1):
        yield QueueEntry(
            job_id=glance.job_id,
            step=packing.step,
            work=Work.PACKING,
            waits=packing.state is PackingState.QUEUED,
            since=packing.at,
        )
