"""What a planner knows of the steps that wait for a plan, without asking about every job at every step."""

import time
from collections.abc import Callable

from relibra.errors import Corrupt
from relibra.store import PendingStep, Store

SCAN_INTERVAL_S = 0.25
"""How long a step that another planner accepted or left behind may go unnoticed, with up to `_NUM_JOBS` jobs."""
_NUM_JOBS = 100
"""With more jobs, scans are rarer in proportion, so that their cost does not grow with the jobs."""


class PendingView:
    """The pending steps of all jobs, and the jobs that cannot be read, as of the last look."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._news: set[str] = set()
        self._pending: list[PendingStep] = []
        self._broken: dict[str, Corrupt] = {}
        self._scan_at = clock()

    @property
    def wait_s(self) -> float:
        """How long to wait for the next scan of all jobs."""
        return max(0.0, self._scan_at - self._clock())

    def note(self, job_id: str) -> None:
        """Read a job at the next look, whether that is a scan or not."""
        self._news.add(job_id)

    async def look(self) -> tuple[list[PendingStep], dict[str, Corrupt]]:
        """Read the jobs with news, or all jobs once a scan is due; return what is known of all jobs.

        Raises:
            Unavailable: Redis does not serve; the next look reads the same jobs again.
            Corrupt: the set of jobs cannot be read.
        """
        read, self._news = self._news, set()
        try:
            if self.wait_s:
                await self._read(read)
            else:
                ids = await self._store.job_ids()
                self._pending, self._broken = await self._store.pending_steps(ids)
                self._scan_at = self._clock() + SCAN_INTERVAL_S * max(1.0, len(ids) / _NUM_JOBS)
        except Exception:
            self._news |= read
            raise
        return self._pending, self._broken

    async def _read(self, job_ids: set[str]) -> None:
        if not job_ids:
            return
        pending, broken = await self._store.pending_steps(job_ids)
        self._pending = [step for step in self._pending if step.job_id not in job_ids] + pending
        self._broken = {job_id: fault for job_id, fault in self._broken.items() if job_id not in job_ids} | broken
