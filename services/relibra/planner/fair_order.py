"""Whose step is solved next."""

from collections.abc import Collection, Iterable, Mapping

from relibra.store import PendingStep


def next_turns(pending: Iterable[PendingStep], last_turn: Mapping[str, int], busy: Collection[str]) -> list[str]:
    """Return the jobs to solve for, in order: who waited longest for a turn first, then whose step waits longest.

    So jobs take turns, and one with many steps does not hold up one with few (S6). Steps of one job go one after the
    other, since each starts from the placement before.

    Args:
        pending: all steps that wait.
        last_turn: when each job last had its turn, as a rising number; a job that never had one comes first.
        busy: jobs that are being solved for.
    """
    waiting_since: dict[str, float] = {}
    for each in pending:
        if each.job_id not in busy:
            waiting_since[each.job_id] = min(each.submitted_at, waiting_since.get(each.job_id, each.submitted_at))
    return sorted(waiting_since, key=lambda job_id: (last_turn.get(job_id, 0), waiting_since[job_id], job_id))
