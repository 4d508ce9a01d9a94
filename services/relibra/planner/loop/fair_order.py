"""Whose step is solved, or whose sequences are packed, next."""

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol


class Waiting(Protocol):
    """Something that waits for a solver."""

    @property
    def job_id(self) -> str:
        """The job that it belongs to."""

    @property
    def submitted_at(self) -> float:
        """Since when it waits, in seconds since 1970."""


def next_turns(waiting: Iterable[Waiting], last_turn: Mapping[str, int], busy: Collection[str]) -> list[str]:
    """Return the jobs to work for, in order: the job whose last turn is longest ago, then the one that waits longest.

    So jobs take turns, and a job that asks for much does not hold up a job that asks for little (S6). A job has one
    step solved or packed at a time, because each plan starts from the placement of the plan before.

    Args:
        waiting: all steps that wait for a plan, and all packings that callers wait for.
        last_turn: a rising number for the last turn of each job; a job without one comes first.
        busy: the jobs that a solver works for.
    """
    waiting_since: dict[str, float] = {}
    for each in waiting:
        if each.job_id not in busy:
            waiting_since[each.job_id] = min(each.submitted_at, waiting_since.get(each.job_id, each.submitted_at))
    return sorted(waiting_since, key=lambda job_id: (last_turn.get(job_id, 0), waiting_since[job_id], job_id))
