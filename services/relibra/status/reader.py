"""How the endpoints read the store: costly results are cached within bounds, and work runs off the event loop."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ParamSpec, TypeVar

from relibra.errors import Corrupt, NotFound
from relibra.planning import Plan
from relibra.planning.execution import Execution
from relibra.status.access import Viewer
from relibra.status.attempts import AttemptChoice, AttemptSteps, find_refused_launch
from relibra.status.balance import GLANCE_STEPS, judge_balance
from relibra.status.broken_jobs import BrokenJob, of_jobs
from relibra.status.figures import PlanFigures
from relibra.status.glance import JobGlance
from relibra.status.health import JobHealth, JobState, judge_health
from relibra.status.ledger import Ledger
from relibra.status.memory_forecasts import count_exceeded
from relibra.status.savings import JobSaving, TokenTime
from relibra.status.views import fields_of
from relibra.store import Attempt, JobRecord, PlanRecord, StepRecord, StepState, StepSummary, Store
from relibra.store.single_flight import SingleFlight

P = ParamSpec("P")
T = TypeVar("T")

_MAX_SCANNED = 1000
"""The number of steps searched when only one state is requested."""
_NUM_EXECUTIONS = 128
_SLICE_S = 0.002
"""How long one answer is made before the worker turns to the next one."""


class Reader:
    """Reads the store on behalf of all viewers."""

    def __init__(self, store: Store, *, num_plans: int) -> None:
        self.store = store
        self.ledger = Ledger(store, self._in_brief)
        self._figures: SingleFlight[PlanFigures] = SingleFlight(num_plans)
        self._executions: SingleFlight[list[Execution] | Corrupt] = SingleFlight(_NUM_EXECUTIONS)
        # One thread, because each further one would take the interpreter from the event loop as often.
        self._workers = ThreadPoolExecutor(1, "status")

    async def off_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function`, which takes milliseconds, in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, lambda: function(*args, **kwargs))

    async def join(self, parts: Iterator[bytes]) -> bytes:
        """Make parts, which take milliseconds each, in a worker thread, and join them; other work comes between."""
        content = bytearray()

        def make_some() -> bool:
            until = time.perf_counter() + _SLICE_S
            for part in parts:
                content.extend(part)
                if time.perf_counter() >= until:
                    return True
            return False

        while await self.off_loop(make_some):
            pass
        return bytes(content)

    async def find_plan(self, job: JobRecord, step: int) -> PlanRecord:
        """Return the record of a step's plan.

        Raises:
            NotFound: the step has no plan; the message says why.
        """
        record = await self.store.find_step(job, step)
        if record.plan is None:
            raise NotFound(f"step {step} of job {job.job_id!r} has no plan; it is {record.failure or record.state}")
        return record.plan

    async def step(self, job: JobRecord, step: int) -> StepSummary:
        """Return a step with its full data, or what is left of an expired one.

        Raises:
            NotFound: neither is there; the message says why.
        """
        try:
            (summary,) = await self._in_brief(job, [await self.store.find_step(job, step)])
        except NotFound:
            expired = await self.store.get_summary(job, step)
            if expired is None:
                raise
            summary = expired
        return summary

    async def steps(
        self, job: JobRecord, *, limit: int, before: int | None, state: StepState | None
    ) -> list[StepSummary]:
        """Return the last `limit` steps of an attempt that are in `state`, or all, expired or not, newest first.

        With a state, only the last `_MAX_SCANNED` steps are searched.
        """
        num = limit if state is None else _MAX_SCANNED
        kept = await self.store.list_steps(job, limit=num, before=before)
        kept = [step for step in kept if state in (None, step.state)]
        expired = await self.store.list_summaries(job, limit=num, before=before)
        expired = [step for step in expired if state in (None, step.state)]
        return _merge(await self._in_brief(job, kept[:limit]), expired)[:limit]

    async def summaries(self, job: JobRecord, *, limit: int, before: int | None = None) -> list[StepSummary]:
        """Return the last `limit` steps of an attempt in brief, expired or not, newest first."""
        kept = await self._in_brief(job, await self.store.list_steps(job, limit=limit, before=before))
        expired = await self.store.list_summaries(job, limit=limit, before=before)
        return _merge(kept, expired)[:limit]

    async def sample(self, job: JobRecord, num: int) -> list[StepSummary]:
        """Return steps from the whole of an attempt in brief, newest first.

        The newest `num` steps that are kept in full are among them, and about `num` expired ones, evenly spaced.
        """
        kept = await self._in_brief(job, await self.store.list_steps(job, limit=num))
        return _merge(kept, await self.store.sample_summaries(job, num))

    async def _in_brief(self, job: JobRecord, steps: list[StepRecord]) -> list[StepSummary]:
        executed = await self.executions(job, [step.step for step in steps])
        return [
            StepSummary.of(replace(step, failure=str(executions)), [])
            if isinstance(executions, Corrupt)
            else StepSummary.of(step, executions)
            for step, executions in zip(steps, executed, strict=True)
        ]

    async def figures(self, job: JobRecord, record: PlanRecord) -> PlanFigures:
        """Return a plan with its loads. Loads are computed on first access: access them off the event loop."""
        return await self._figures.get((job.job_id, record.id), lambda: self._decode(job, record))

    async def find_executions(self, job: JobRecord, step: int) -> list[Execution]:
        """Return what the ranks did in a step, by phase.

        Raises:
            Corrupt: a report is not the one that was stored.
        """
        (executions,) = await self.executions(job, [step])
        if isinstance(executions, Corrupt):
            raise executions
        return executions

    async def executions(self, job: JobRecord, steps: Sequence[int]) -> list[list[Execution] | Corrupt]:
        """Return what the ranks did in each of `steps`, by phase; the error for a step with a damaged report.

        While reports are missing, a report that replaces an earlier one of the same rank may not be visible yet.
        """
        numbers = await self.store.num_reports(job, steps)
        complete = await self.store.get_executions(job, steps)
        return [
            executions
            if isinstance(executions, Corrupt) or sum(phase.num_reports for phase in executions) == number
            else await self._so_far(job, step, number)
            for step, number, executions in zip(steps, numbers, complete, strict=True)
        ]

    async def _so_far(self, job: JobRecord, step: int, num_reports: int) -> list[Execution] | Corrupt:
        async def sum_up() -> list[Execution] | Corrupt:
            try:
                return await self.store.sum_reports(job, step)
            except Corrupt as error:
                return error  # kept like a sum, or each page would read all reports again

        return await self._executions.get((job.job_id, job.epoch, step, num_reports), sum_up)

    async def glances(self, viewer: Viewer) -> tuple[list[JobGlance], list[BrokenJob]]:
        """Return the state of the current attempts of all jobs that `viewer` may see, as `of_jobs` does."""
        return await of_jobs(self.store, viewer, self.glance)

    async def glance(self, choice: AttemptChoice) -> JobGlance:
        """Return the state of an attempt with the steps that it was derived from."""
        job = choice.job
        steps = await self.store.list_steps(job, limit=GLANCE_STEPS)
        numbers = await self.store.num_reports(job, [step.step for step in steps])
        reported = [step for step, number in zip(steps, numbers, strict=True) if number]
        done: list[tuple[StepRecord, list[Execution]]] = []
        damaged: dict[int, Corrupt] = {}
        executed = await self.executions(job, [step.step for step in reported])
        for step, executions in zip(reported, executed, strict=True):
            if isinstance(executions, Corrupt):
                damaged[step.step] = executions
            else:
                done.append((step, executions))
        refusals = await self.store.get_refusals(job)
        # Nobody knows whether ranks used the plan of a step with a damaged report, so it says nothing about balance.
        balance = judge_balance([step for step in steps if step.step not in damaged], done, refusals)
        executed_step, newest_executed = done[0] if done else (None, [])
        finished_at = choice.chosen.finished_at if choice.chosen.has_finished else None
        now = finished_at or choice.chosen.ended_at or time.time()
        applied = None if executed_step is None else await self.applied_plan(job, executed_step, newest_executed)
        health = judge_health(
            steps, executed_step, newest_executed, balance, now, choice.chosen.number, damaged, applied
        )
        if not steps and await self.store.list_summaries(job, limit=1):
            expired = f"the full data of attempt {choice.chosen.number} has expired; summaries of its steps remain"
            health = JobHealth(verdict=JobState.WAITING, reason=expired)
        if finished_at is not None:
            reason = f"the training ended at {_write_time(finished_at)}; at its end: {health.reason}"
            health = JobHealth(verdict=JobState.ENDED, reason=reason)
        saving = await self.ledger.of_job(choice.attempts)
        return JobGlance(
            choice=choice,
            health=health,
            balance=balance,
            steps=steps,
            executed_step=executed_step,
            executed=newest_executed,
            applied=applied,
            damaged=damaged,
            packing=await self.store.get_packing(job),
            refused_launch=None if choice.is_over else find_refused_launch(refusals),
            memory_forecasts=count_exceeded((step.plan, executions) for step, executions in done),
            savings=JobSaving(**fields_of(saving), time=TokenTime.of(choice.current)),
        )

    async def applied_plan(self, job: JobRecord, step: StepRecord, executed: Sequence[Execution]) -> PlanRecord | None:
        """Return the plan that the ranks of a step applied; None if they applied none, or if it is not kept."""
        plan_id = next((execution.applied for execution in executed if execution.applied is not None), None)
        if plan_id is None or (step.plan is not None and step.plan.id == plan_id):
            return None if plan_id is None else step.plan
        try:
            return await self.store.plan_of_id(job, plan_id)
        except Corrupt:
            return None  # the page of the plan's own step says so

    async def latest_plan(self, job: JobRecord) -> PlanRecord | None:
        """Return the newest plan of an attempt; None if it has none, or if it is not the one that was stored."""
        try:
            return await self.store.latest_plan(job)
        except Corrupt:
            return None  # the health of the job says so

    async def attempts(self, attempts: Sequence[Attempt]) -> list[AttemptSteps]:
        """Return attempts with their first and last steps, and the numbers of steps that they planned."""
        spans = await self.store.kept_steps(attempts)
        planned = await asyncio.gather(*map(self.store.num_planned_steps, attempts))
        return [
            AttemptSteps(
                **fields_of(attempt),
                first_step=None if span is None else span[0],
                last_step=None if span is None else span[1],
                num_planned_steps=num_planned,
            )
            for attempt, span, num_planned in zip(attempts, spans, planned, strict=True)
        ]

    async def plan(self, job: JobRecord, record: PlanRecord) -> Plan:
        """Read a plan from the store and return it.

        Raises:
            NotFound: the job was re-created in the meantime.
        """
        plan = await self.store.get_plan(job, record.step)
        if await self.store.get_plan_id(job, record.step) != record.id:
            raise NotFound(f"plan {record.id} of job {job.job_id!r} was just replaced; ask again")
        return plan

    async def _decode(self, job: JobRecord, record: PlanRecord) -> PlanFigures:
        return PlanFigures(plan=await self.plan(job, record))


def _merge(kept: Sequence[StepSummary], expired: Sequence[StepSummary]) -> list[StepSummary]:
    """Return all steps, newest first; a step that expired between two reads once."""
    by_step = {step.step: step for step in (*kept, *expired)}
    return [by_step[step] for step in sorted(by_step, reverse=True)]


def _write_time(unix_time: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_time))
