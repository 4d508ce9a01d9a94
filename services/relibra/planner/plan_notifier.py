"""Wakes the coroutines of this process that wait for news about a job.

A ring is only a hint. A caller looks into the store before and after it waits, because a plan that another planner
publishes rings nothing here.
"""

import asyncio
from weakref import WeakValueDictionary

from relibra.errors import Unavailable


class ShuttingDown(Unavailable):
    """The planner drains, and another one answers. For callers it is `Unavailable`; for metrics it is not."""


class PlanNotifier:
    """One event per job, and a last ring for all jobs when the planner drains. For one event loop."""

    def __init__(self) -> None:
        # An event lives as long as somebody listens, so names of jobs that came once are not kept.
        self._rings: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._is_draining = False

    def listen(self, job_id: str) -> asyncio.Event:
        """Return the event that the next ring sets. Listen first, then look, then wait: so no ring is missed.

        Raises:
            ShuttingDown: the planner is draining.
        """
        if self._is_draining:
            raise ShuttingDown("the planner is shutting down; ask again")
        return self._rings.setdefault(job_id, asyncio.Event())

    def ring(self, job_id: str) -> None:
        """Wake everyone who listens for `job_id`."""
        if ring := self._rings.pop(job_id, None):
            ring.set()

    def drain(self) -> None:
        """Wake everyone, and refuse new listeners from now on."""
        self._is_draining = True
        for job_id in list(self._rings):
            self.ring(job_id)


async def wait_until_set(event: asyncio.Event, timeout_s: float) -> None:
    """Return when `event` is set, or after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
