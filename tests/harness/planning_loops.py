"""Planning loops over solvers that a test controls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, PLAN, SCHEDULE
from relibra.planner.loop.planning_loop import PlanningLoop
from relibra.planner.metrics import Metrics
from relibra.planner.plan_notifier import PlanNotifier
from relibra.planner.settings import PlannerSettings
from relibra.planner.solve.packing import PackTask
from relibra.planning import Schedule
from relibra.store import EncodedPlan, JobRecord, Store

Before = Callable[[str, int], Awaitable[None]]
PATIENT_S = 120.0
LONG_S = 600.0
"""A lease that outlasts every delay of a busy machine."""


class Solver:
    """Returns a given plan, or the schedule that it is asked to pack, after running `before` on the step."""

    def __init__(self, before: Before, num_warm: int = 2) -> None:
        self._before = before
        self.obstacle = ""
        self.num_warm = num_warm
        self.steps: list[tuple[str, int]] = []

    async def solve(self, job_id: str, step: int) -> EncodedPlan:
        self.steps.append((job_id, step))
        await self._before(job_id, step)
        return PLAN

    async def pack(self, task: PackTask) -> tuple[Schedule, str]:
        self.steps.append((task.job.job_id, task.step))
        await self._before(task.job.job_id, task.step)
        return task.start, "packed"


async def nothing(job_id: str, step: int) -> None:
    return


def job_with_two_steps(store: Store, run: Loop) -> JobRecord:
    """Register a job whose steps 1 and 2 wait to be solved."""
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    for step in (1, 2):
        run(store.put_schedule(job, step, IDS, SCHEDULE))
    return job


def patient_settings(**settings: Any) -> PlannerSettings:
    return PlannerSettings.load(redis_url="unix:///unused", **{"lease_s": LONG_S, **settings})


def loop_over(
    store: Store,
    solver: Solver,
    notifier: PlanNotifier | None = None,
    metrics: Metrics | None = None,
    **settings: Any,
) -> PlanningLoop:
    """Return a loop that is patient unless `settings` say otherwise."""
    return PlanningLoop(store, solver, notifier or PlanNotifier(), metrics or Metrics(), patient_settings(**settings))


async def is_idle(store: Store) -> bool:
    return not (await store.pending_steps())[0]


@asynccontextmanager
async def running(loop: PlanningLoop, until: Callable[[], Awaitable[bool]]) -> AsyncIterator[None]:
    """Run a loop during the body, and then until a condition holds."""
    task = asyncio.create_task(loop.run())
    yield
    async with asyncio.timeout(PATIENT_S):
        # Each check is a round trip to Redis, during which the loop runs.
        while not await until():
            pass
    loop.stop()
    await task
