"""Waiting for a step: all calls of this planner that wait for one step look into the store together."""

import asyncio

from relibra.planner.limits.admission import MAX_FETCH_WAIT_S
from relibra.planner.plan_notifier import PlanNotifier, wait_until_set
from relibra.store import JobRecord, StepRecord, Store
from relibra.store.single_flight import SingleFlight

LOOK_INTERVAL_S = 0.25
"""How long a plan that another planner published may go unnoticed by this one."""
_MAX_STEPS = 1024


class StepWatch:
    """Looks at each awaited step once per interval and at every ring, however many calls wait. For one event loop."""

    def __init__(self, store: Store, notifier: PlanNotifier) -> None:
        self._store = store
        self._notifier = notifier
        self._looks: SingleFlight[StepRecord] = SingleFlight(_MAX_STEPS, fresh_s=0.0)
        self._waits: SingleFlight[StepRecord] = SingleFlight(_MAX_STEPS, fresh_s=0.0)

    async def wait(self, job: JobRecord, step: int, wait_s: float) -> StepRecord:
        """Return a step as soon as it has its plan, has failed, or needs no waiting; or as it is after `wait_s`.

        Raises:
            ShuttingDown: the planner is draining.
            Unavailable: Redis does not answer.
        """
        key = (job.job_id, job.epoch, step)
        record = await self._looks.get(key, lambda: self._store.get_step(job, step))
        if not record.is_awaited or wait_s <= 0:
            return record
        try:
            async with asyncio.timeout(wait_s):
                return await self._waits.get(key, lambda: self._follow(job, step))
        except TimeoutError:
            return await self._looks.get(key, lambda: self._store.get_step(job, step))

    async def _follow(self, job: JobRecord, step: int) -> StepRecord:
        """Return the step once it is awaited no more, or as it is after the longest wait of a call."""
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_FETCH_WAIT_S
        while True:
            # Listens before it looks, so that no ring is missed between this look and the next.
            ring = self._notifier.listen(job.job_id)
            record = await self._store.get_step(job, step)
            if not record.is_awaited or loop.time() >= until:
                return record
            await wait_until_set(ring, LOOK_INTERVAL_S)
