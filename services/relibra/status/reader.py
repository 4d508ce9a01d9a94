"""What the endpoints read: the store, with what is expensive kept in bounded memory, and work off the event loop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from relibra.errors import NotFound
from relibra.status.execution import Execution, executions
from relibra.status.figures import PlanFigures, StepTotals
from relibra.status.health import JobHealth, job_health
from relibra.status.memory import Memory
from relibra.store import JobRecord, PlanRecord, StepRecord, Store

P = ParamSpec("P")
T = TypeVar("T")

_NUM_TOTALS = 256
_NUM_EXECUTIONS = 512
_NUM_WORKERS = 2
"""Threads for what takes milliseconds: more would only share the same cores, and each may hold a whole plan."""
_GLANCE_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGlance:
    """A job as the overview shows it."""

    job: JobRecord
    health: JobHealth
    steps: list[StepRecord]
    """The newest ones, newest first."""
    executed_step: StepRecord | None
    """The newest one that has reports."""
    executed: list[Execution]


class Reader:
    """Reads the store on behalf of all viewers."""

    def __init__(self, store: Store, *, num_plans: int) -> None:
        self.store = store
        self._figures: Memory[PlanFigures] = Memory(num_plans)
        self._totals: Memory[StepTotals] = Memory(_NUM_TOTALS)
        self._executions: Memory[list[Execution]] = Memory(_NUM_EXECUTIONS)
        self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="status")

    @property
    def num_cached_plans(self) -> int:
        """Decoded plans in memory."""
        return len(self._figures)

    async def off_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what takes milliseconds in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, lambda: function(*args, **kwargs))

    async def planned(self, job: JobRecord, step: int) -> PlanRecord:
        """Return the record of a step's plan.

        Raises:
            NotFound: it has none; says why.
        """
        record = await self.store.get_step(job.job_id, step)
        if record.plan is None:
            raise NotFound(f"step {step} of job {job.job_id!r} has no plan; it is {record.failure or record.state}")
        return record.plan

    async def figures(self, job: JobRecord, record: PlanRecord) -> PlanFigures:
        """Return a plan with its loads."""
        return await self._figures.get((job.job_id, record.id), lambda: self._decode(job, record))

    async def totals(self, job: JobRecord, record: PlanRecord) -> StepTotals:
        """Return a plan summed over its rows; whoever asks for many steps does not push plans out of memory."""

        async def make() -> StepTotals:
            return await self.off_loop(StepTotals.of, await self._decode(job, record))

        return await self._totals.get((job.job_id, record.id), make)

    async def executions(self, job: JobRecord, steps: Sequence[int]) -> list[list[Execution]]:
        """Return what ranks did in some steps. A report that replaced another of the same rank may not be seen yet."""
        found = []
        for step, number in zip(steps, await self.store.num_reports(job.job_id, steps), strict=True):
            found.append(await self._executions_of(job, step, number) if number else [])
        return found

    async def _executions_of(self, job: JobRecord, step: int, num_reports: int) -> list[Execution]:
        key = (job.job_id, job.epoch, step, num_reports)
        return await self._executions.get(key, lambda: self.fresh_executions(job, step))

    async def fresh_executions(self, job: JobRecord, step: int) -> list[Execution]:
        """Return what ranks did in one step."""
        reports = await self.store.get_reports(job.job_id, step)
        return await self.off_loop(executions, reports, job.cluster)

    async def glance(self, job: JobRecord) -> JobGlance:
        """Return how a job is."""
        steps = await self.store.list_steps(job.job_id, limit=_GLANCE_STEPS)
        numbers = await self.store.num_reports(job.job_id, [each.step for each in steps])
        executed_step = next((step for step, number in zip(steps, numbers, strict=True) if number), None)
        executed = [] if executed_step is None else (await self.executions(job, [executed_step.step]))[0]
        health = job_health(steps, executed_step, executed, time.time())
        return JobGlance(job=job, health=health, steps=steps, executed_step=executed_step, executed=executed)

    async def _decode(self, job: JobRecord, record: PlanRecord) -> PlanFigures:
        plan = await self.store.get_plan(job.job_id, record.step)
        if await self.store.get_plan_id(job.job_id, record.step) != record.id:
            raise NotFound(f"plan {record.id} of job {job.job_id!r} was replaced just now; ask again")
        return await self.off_loop(PlanFigures.of, plan)
