"""Waiting for a step: all calls of this planner that wait for one step look into the store together."""

import asyncio
from dataclasses import dataclass

from relibra.planner.plan_notifier import PlanNotifier, wait_until_set
from relibra.store import JobRecord, StepRecord, Store
from relibra.store.single_flight import SingleFlight

LOOK_INTERVAL_S = 0.25
"""How long a plan that another planner published may go unnoticed by this one."""
_MAX_STEPS = 1024

_Look = tuple[StepRecord, asyncio.Event]


@dataclass(slots=True)
class _Awaited:
    """A step that calls wait for."""

    latest: StepRecord
    task: asyncio.Task[StepRecord] | None = None
    num_calls: int = 0


class StepWatch:
    """Looks at each awaited step once per interval and at every ring, however many calls wait. For one event loop."""

    def __init__(self, store: Store, notifier: PlanNotifier) -> None:
        self._store = store
        self._notifier = notifier
        self._first_looks: SingleFlight[_Look] = SingleFlight(_MAX_STEPS, fresh_s=0.0)
        self._awaited: dict[tuple[str, int, int], _Awaited] = {}

    async def wait(self, job: JobRecord, step: int, wait_s: float) -> StepRecord:
        """Return a step as soon as it has its plan, has failed, or needs no waiting; or as it is after `wait_s`.

        Raises:
            ShuttingDown: the planner is draining.
            Unavailable: Redis does not answer.
        """
        key = (job.job_id, job.epoch, step)
        record, ring = await self._first_looks.get(key, lambda: self._look(job, step))
        if _is_decided(record) or wait_s <= 0:
            return record
        awaited = self._awaited.setdefault(key, _Awaited(record))
        if awaited.task is None or awaited.task.done():
            awaited.task = asyncio.create_task(self._follow(awaited, job, step, ring))
        awaited.num_calls += 1
        task = awaited.task
        try:
            # `wait` does not cancel the task with the call: others wait for it too. They sleep until it ends.
            await asyncio.wait({task}, timeout=wait_s)
        finally:
            awaited.num_calls -= 1
            if awaited.num_calls == 0:
                self._awaited.pop(key, None)
                task.cancel()
        return task.result() if task.done() and not task.cancelled() else awaited.latest

    async def _follow(self, awaited: _Awaited, job: JobRecord, step: int, ring: asyncio.Event) -> StepRecord:
        while True:
            await wait_until_set(ring, LOOK_INTERVAL_S)
            awaited.latest, ring = await self._look(job, step)
            if _is_decided(awaited.latest):
                return awaited.latest

    async def _look(self, job: JobRecord, step: int) -> _Look:
        # Listens before it looks, so that no ring is missed between this look and the next.
        ring = self._notifier.listen(job.job_id)
        return await self._store.get_step(job, step), ring


def _is_decided(record: StepRecord) -> bool:
    return not record.is_awaited
