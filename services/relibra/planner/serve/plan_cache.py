"""The plans that were fetched last: every agent of a job fetches the same one at the same time."""

from relibra.planner.serve.served_plan import ServedPlan
from relibra.store import Store
from relibra.store.single_flight import SingleFlight

MAX_SIZE_BYTES = 512 << 20
"""How much memory plans take at most: those of 390 steps of 58 layers, 256 experts, 64 ranks and 32 micro-batches."""
FRESH_S = 0.25
"""How long callers may still get plans of their attempt after it ended at another planner, or after Redis lost it."""


class PlanCache:
    """Reads each plan once, and asks at most every `fresh_s` whether the store still has it."""

    def __init__(self, store: Store, *, max_size_bytes: int = MAX_SIZE_BYTES, fresh_s: float = FRESH_S) -> None:
        self._store = store
        self._plans: SingleFlight[ServedPlan | None] = SingleFlight(
            max_size_bytes, fresh_s=fresh_s, size=lambda plan: plan.size_bytes if plan else 0
        )

    def forget(self, job_id: str) -> None:
        """Ask the store for the plans of a job again: another attempt of it began."""
        self._plans.drop(lambda key: isinstance(key, tuple) and key[0] == job_id)

    async def get(self, job_id: str, epoch: int, step: int) -> ServedPlan | None:
        """Return the plan of a step in the attempt that has `epoch`, or None if the step has none.

        Raises:
            UnknownJob: the job was never registered.
            StaleEpoch: the attempt is over.
        """
        key = (job_id, epoch, step)
        known = self._plans.last(key)
        return await self._plans.get(key, lambda: self._read(job_id, epoch, step, known))

    async def _read(self, job_id: str, epoch: int, step: int, known: ServedPlan | None) -> ServedPlan | None:
        job = await self._store.get_job(job_id)
        if epoch != job.epoch:
            raise await self._store.over(job_id, epoch)
        if known is not None and await self._store.get_plan_id(job, step) == known.id:
            return known
        packed = await self._store.get_packed_plan(job, step)
        return None if packed is None else ServedPlan.of(job, packed)
