"""How many calls of each job a planner answers at a time, streams among them (S6)."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from relibra.errors import LimitExceeded
from relibra.store import ALL_JOBS


class CallsUnderWay:
    """Counts calls by the job of their caller; callers that are of no single job are not limited."""

    def __init__(self, max_per_job: int) -> None:
        self._max_per_job = max_per_job
        self._number: Counter[str] = Counter()

    @contextmanager
    def one(self, job_id: str) -> Iterator[None]:
        """Count a call for as long as it is under way.

        Raises:
            LimitExceeded: too many of this job are.
        """
        if job_id != ALL_JOBS and self._number[job_id] >= self._max_per_job:
            raise LimitExceeded(
                f"{self._max_per_job} calls and streams of job {job_id!r} are under way at this planner "
                "(max_calls_per_job); end some, or raise it"
            )
        self._number[job_id] += 1
        try:
            yield
        finally:
            self._number[job_id] -= 1
            if not self._number[job_id]:
                del self._number[job_id]
