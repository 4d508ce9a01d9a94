"""Makes old steps expire: after every solve, in the background, and once a minute for jobs that plan nothing."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from relibra.errors import Corrupt, Unavailable
from relibra.planner.loop.retention import steps_to_expire, summaries_to_drop
from relibra.planner.metrics import Metrics
from relibra.planner.settings import PlannerSettings
from relibra.store import JobRecord, Store

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 60.0
"""How often some planner looks at the steps of a job that plans nothing."""


class StepExpiry:
    """Reads what steps take, decides with `steps_to_expire`, and has the store replace full data by summaries."""

    def __init__(self, store: Store, metrics: Metrics, settings: PlannerSettings) -> None:
        self._store = store
        self._metrics = metrics
        self._limits = settings
        self._too_large: set[str] = set()
        self._due: set[str] = set()
        self._passes: dict[str, asyncio.Task[None]] = {}

    def apply_soon(self, job_id: str) -> None:
        """Let steps of a job expire in the background, so that neither ranks nor the next solve wait for it.

        A job has one pass at a time. Calls during a pass lead to one further pass together.
        """
        self._due.add(job_id)
        if job_id not in self._passes:
            self._passes[job_id] = asyncio.create_task(self._apply_due(job_id))

    async def settle(self) -> None:
        """Return when all passes in the background have ended."""
        await asyncio.gather(*self._passes.values())

    async def _apply_due(self, job_id: str) -> None:
        try:
            while job_id in self._due:
                self._due.discard(job_id)
                try:
                    await self._apply_or_tell(job_id, self.apply)
                except Unavailable as error:
                    logger.warning("job %s: steps expire later: %s", job_id, error, extra={"job": job_id})
        finally:
            del self._passes[job_id]

    async def _sweep(self, job_id: str) -> None:
        if await self._store.claim_sweep(job_id, SWEEP_INTERVAL_S):
            await self.apply(job_id)

    async def _apply_or_tell(self, job_id: str, apply: Callable[[str], Awaitable[None]]) -> None:
        """Let steps of a job expire. Any error but `Unavailable` concerns this job alone and ends in the log."""
        try:
            await apply(job_id)
        except Unavailable:
            raise
        except Corrupt as error:
            logger.warning("job %s: the steps that should expire stay: %s", job_id, error, extra={"job": job_id})
        except Exception:
            logger.exception("job %s: the steps that should expire stay", job_id, extra={"job": job_id})

    async def apply(self, job_id: str) -> None:
        """Let steps of all attempts of a job expire."""
        attempts = await self._store.list_attempts(job_id)
        measured = [await self._store.measure_steps(attempt) for attempt in attempts]
        if not measured:
            return
        kept = [steps for steps, _ in measured]
        summaries_bytes = await self._trim_summaries(attempts)
        expiries = steps_to_expire(kept, measured[0][1], self._limits, summaries_bytes)
        size_bytes = summaries_bytes + sum(step.size_bytes for steps in kept for step in steps)
        for attempt, causes in zip(attempts, expiries, strict=True):
            if not causes:
                continue
            expired = set(await self._store.expire_steps(attempt, causes, time.time()))
            gone = [(step, cause) for step, cause in causes.items() if step.step in expired]
            for step, cause in gone:
                size_bytes -= step.size_bytes
                self._metrics.expired_steps.labels(cause).inc()
            if gone:
                logger.info(
                    "job %s: the full data of steps %d to %d of attempt %d expired (%s); their summaries stay",
                    job_id,
                    gone[0][0].step,
                    gone[-1][0].step,
                    attempt.number,
                    ", ".join(sorted({cause for _, cause in gone})),
                    extra={"job": job_id, "epoch": attempt.epoch},
                )
        self._tell_size(job_id, size_bytes)

    async def _trim_summaries(self, attempts: Sequence[JobRecord]) -> int:
        """Drop the summaries that take too much; return what the others take."""
        sizes_bytes = await self._store.measure_summaries(attempts)
        for number in summaries_to_drop(sizes_bytes, self._limits):
            attempt, size_bytes = attempts[number], sizes_bytes[number]
            await self._store.drop_summaries(attempt)
            sizes_bytes[number] = 0
            logger.warning(
                "job %s: the summaries of attempt %d, %d bytes, are dropped: those of a job may take half of "
                "retained_bytes (%d)",
                attempt.job_id,
                attempt.number,
                size_bytes,
                self._limits.retained_bytes,
                extra={"job": attempt.job_id, "epoch": attempt.epoch},
            )
        return sum(sizes_bytes)

    async def run(self) -> None:
        """Look at all jobs once a minute, until cancelled. One of several planners looks at each job."""
        while True:
            try:
                for job_id in await self._store.job_ids():
                    await self._apply_or_tell(job_id, self._sweep)
            except Unavailable as error:
                logger.warning("steps expire later: %s", error)
            except Exception:
                logger.exception("looking for steps to expire failed")
            await asyncio.sleep(SWEEP_INTERVAL_S)

    def _tell_size(self, job_id: str, size_bytes: int) -> None:
        if size_bytes <= self._limits.retained_bytes:
            self._too_large.discard(job_id)
        elif job_id not in self._too_large:
            self._too_large.add(job_id)
            logger.warning(
                "job %s: its steps take %d bytes, but retained_bytes is %d; they stay, because they are under way or "
                "may still be fetched. Raise retained_bytes if Redis has room, or lower max_open_steps",
                job_id,
                size_bytes,
                self._limits.retained_bytes,
                extra={"job": job_id},
            )
