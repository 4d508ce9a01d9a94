"""How long jobs wait for a free solver: what more planners would shorten.

A step that waits for an earlier step of its own job is not counted, because no further planner would help it.
"""

import time
from collections.abc import Callable, Iterable


class QueueWaits:
    """The jobs that wait for a solver, as one planner sees them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def look(self, waiting: Iterable[str]) -> None:
        """Note the jobs that have a step to solve and no solver. A job that is no longer among them waits no more."""
        now = self._clock()
        self._since = {job_id: self._since.get(job_id, now) for job_id in waiting}

    def end(self, job_id: str) -> float:
        """Return how long a job has waited until now, in seconds; 0 if this planner did not see it wait."""
        now = self._clock()
        return now - self._since.pop(job_id, now)
