"""Whose step is solved next."""

from collections.abc import Collection, Iterable, Mapping

from relibra.store import PendingStep


def next_turns(pending: Iterable[PendingStep], last_turn: Mapping[str, int], busy: Collection[str]) -> list[str]:
    """Return the jobs to solve for, in order: the job whose last turn is longest ago, then the longest waiting step.

    So jobs take turns, and a job with many steps does not hold up a job with few (S6). A job has one step solved at a
    time, because each plan starts from the placement of the plan before.

    Args:
        pending: all steps that wait for a plan.
        last_turn: a rising number for the last turn of each job; a job without one comes first.
        busy: the jobs that have a step being solved.
    """
    waiting_since: dict[str, float] = {}
    for each in pending:
        if each.job_id not in busy:
            waiting_since[each.job_id] = min(each.submitted_at, waiting_since.get(each.job_id, each.submitted_at))
    return sorted(waiting_since, key=lambda job_id: (last_turn.get(job_id, 0), waiting_since[job_id], job_id))
