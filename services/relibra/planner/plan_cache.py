"""The last few plans that were fetched, because every agent of a job fetches the same one at the same time."""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass

from relibra.planner.served_plan import ServedPlan
from relibra.store import Store

FRESH_S = 0.25
"""How long a job that was re-created elsewhere may go unnoticed; agents refuse what is of an older epoch."""


@dataclass(frozen=True, slots=True)
class _Look:
    looked_at: float
    task: asyncio.Task[ServedPlan | None]

    @property
    def is_fresh(self) -> bool:
        return not self.task.done() or time.monotonic() - self.looked_at < FRESH_S


class PlanCache:
    """Reads a plan once, and looks whether it is still there at most every `FRESH_S`, however many agents ask."""

    def __init__(self, store: Store, *, num_plans: int = 8) -> None:
        self._store = store
        self._num_plans = num_plans
        self._looks: OrderedDict[tuple[str, int], _Look] = OrderedDict()

    async def get(self, job_id: str, step: int) -> ServedPlan | None:
        """Return the plan of a step, or None where there is none.

        Raises:
            UnknownJob: the job was never registered.
        """
        key = job_id, step
        look = self._looks.get(key)
        if look is None or not look.is_fresh:
            known = look.task.result() if look else None
            look = _Look(time.monotonic(), asyncio.create_task(self._look(job_id, step, known)))
            self._looks[key] = look
            if len(self._looks) > self._num_plans:
                self._looks.popitem(last=False)
        self._looks.move_to_end(key)
        found: ServedPlan | None = None
        try:
            # Shielded: one agent that hangs up must not cancel what the others wait for.
            found = await asyncio.shield(look.task)
        finally:
            # What is not there, or failed, is looked for anew by the next one who asks.
            if found is None and look.task.done() and self._looks.get(key) is look:
                del self._looks[key]
        return found

    async def _look(self, job_id: str, step: int, known: ServedPlan | None) -> ServedPlan | None:
        if known is not None and await self._store.get_plan_id(job_id, step) == known.id:
            return known
        job = await self._store.get_job(job_id)
        packed = await self._store.get_packed_plan(job, step)
        return None if packed is None else ServedPlan.of(job, packed)
