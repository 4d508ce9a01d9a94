"""The planning loop against a real store, with solvers that misbehave."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from services_harness import CLUSTER, MODEL, PARAMS, Loop, count, plain_plan, routed_experts

from relibra.errors import InvalidInput, Unavailable
from relibra.planner.bell import Bell
from relibra.planner.planning_loop import PlanningLoop
from relibra.planner.solving import SolvedStep
from relibra.planning import Schedule
from relibra.store import EncodedPlan, JobRecord, StepState, Store

IDS = [f"seq-{index}" for index in range(8)]
SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
COUNTS_SLE = np.stack([count(routed_experts(index, 6)) for index in range(8)])
PLAN = EncodedPlan.of(plain_plan(COUNTS_SLE, SCHEDULE))
OTHER_PLAN = EncodedPlan.of(plain_plan(COUNTS_SLE, SCHEDULE, "from another planner", shift=1))


class Solver:
    """Solves with a given plan, after what `before` does to the step."""

    def __init__(self, job: JobRecord, before: Callable[[int], Awaitable[None]]) -> None:
        self._job = job
        self._before = before
        self.steps: list[int] = []

    async def solve(self, job_id: str, step: int) -> SolvedStep:
        self.steps.append(step)
        await self._before(step)
        return SolvedStep(epoch=self._job.epoch, plan=PLAN)


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    for step in (1, 2):
        run(store.put_schedule("job", step, IDS, SCHEDULE))
    return job


def plan_until(
    store: Store, solver: Solver, until: Callable[[], Awaitable[bool]], bell: Bell | None = None
) -> Awaitable[None]:
    async def scenario() -> None:
        loop = PlanningLoop(store, solver, bell or Bell(), scan_interval_s=0.01)
        running = asyncio.create_task(loop.run())
        async with asyncio.timeout(20):
            # Every look is a round trip to Redis, during which the loop runs.
            while not await until():
                pass
        loop.stop()
        await running

    return scenario()


async def is_idle(store: Store) -> bool:
    return not await store.pending_steps()


async def nothing(step: int) -> None:
    return


def test_pending_steps_are_planned_in_order_and_announced(store: Store, run: Loop, job: JobRecord) -> None:
    bell, solver = Bell(), Solver(job, nothing)
    ring = bell.listen("job")
    run(plan_until(store, solver, lambda: is_idle(store), bell))
    assert solver.steps == [1, 2]
    assert ring.is_set()
    assert [each.step for each in run(store.plans_after("job", 0))] == [1, 2]


def test_a_step_that_cannot_be_planned_fails_with_its_reason(store: Store, run: Loop, job: JobRecord) -> None:
    async def refuse(step: int) -> None:
        if step == 1:
            raise InvalidInput("there is no load")

    solver = Solver(job, refuse)
    run(plan_until(store, solver, lambda: is_idle(store)))
    assert solver.steps == [1, 2]
    assert run(store.get_step("job", 1)).failure == "there is no load"
    assert run(store.get_step("job", 2)).state is StepState.PLANNED


def test_a_crash_is_logged_tried_again_and_given_up(
    store: Store, run: Loop, job: JobRecord, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(step: int) -> None:
        if step == 1:
            raise BrokenProcessPool("the worker died")

    solver = Solver(job, crash)
    run(plan_until(store, solver, lambda: is_idle(store)))
    assert solver.steps.count(1) == 3
    assert solver.steps.count(2) == 1
    assert run(store.get_step("job", 2)).state is StepState.PLANNED
    assert "crashed 3 times, at last with BrokenProcessPool: the worker died" in (
        run(store.get_step("job", 1)).failure or ""
    )
    assert "Traceback" in caplog.text


def test_an_unreachable_store_fails_no_step(store: Store, run: Loop, job: JobRecord) -> None:
    outages = 5

    async def out_of_reach(step: int) -> None:
        nonlocal outages
        if outages:
            outages -= 1
            raise Unavailable("Redis does not serve")

    run(plan_until(store, Solver(job, out_of_reach), lambda: is_idle(store)))
    assert outages == 0
    assert {each.state for each in run(store.list_steps("job"))} == {StepState.PLANNED}


def test_S3_a_plan_that_another_planner_published_stands(store: Store, run: Loop, job: JobRecord) -> None:
    async def overtake(step: int) -> None:
        if step == 1:
            await store.publish_plan("job", step, OTHER_PLAN, epoch=job.epoch)

    solver = Solver(job, overtake)
    run(plan_until(store, solver, lambda: is_idle(store)))
    assert solver.steps == [1, 2]
    assert run(store.get_plan("job", 1)).digest == OTHER_PLAN.digest


def test_S4_a_plan_of_an_older_epoch_is_not_published(store: Store, run: Loop, job: JobRecord) -> None:
    solver = Solver(job, nothing)
    solver._job = JobRecord(**{name: getattr(job, name) for name in job.__slots__} | {"epoch": job.epoch ^ 1})

    async def tried() -> bool:
        await store.ping()
        return len(solver.steps) >= 4

    run(plan_until(store, solver, tried))
    assert run(store.latest_plan("job")) is None
    assert len(run(store.pending_steps())) == 2
