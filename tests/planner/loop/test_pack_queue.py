"""Packings wait for solvers of a planning loop, beside the steps of jobs, over a real store."""

import asyncio
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest

from harness.planning_loops import Solver, is_idle, job_with_two_steps, loop_over, nothing, running
from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, SCHEDULE
from relibra.errors import InvalidInput, Unavailable
from relibra.planner.solve.packing import PackTask
from relibra.planning.schedule import PackingRules
from relibra.store import JobRecord, Store


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:
    return job_with_two_steps(store, run)


def pack_task(job: JobRecord) -> PackTask:
    return PackTask(
        job=job, step=3, sequence_ids=IDS, length_S=np.ones(8, np.int64), start=SCHEDULE, rules=PackingRules()
    )


def test_S6_packings_and_steps_of_jobs_take_turns(store: Store, run: Loop, job: JobRecord) -> None:
    other = run(store.register_job("other", MODEL, CLUSTER, PARAMS))
    run(store.put_schedule(other, 1, IDS, SCHEDULE))
    solver = Solver(nothing, num_warm=1)

    async def scenario() -> None:
        loop = loop_over(store, solver)
        packing = [asyncio.create_task(loop.pack(pack_task(job))) for _ in range(3)]
        await asyncio.sleep(0)  # all wait before the loop runs
        async with running(loop, lambda: is_idle(store)):
            assert await asyncio.gather(*packing) == [(SCHEDULE, "packed")] * 3

    run(scenario())
    # Three packings of one job delay the other job by one packing at most.
    assert solver.steps.index(("other", 1)) <= 1
    assert sorted(solver.steps) == [("job", 1), ("job", 2), *[("job", 3)] * 3, ("other", 1)]


def test_L4_packings_that_wait_are_refused_by_a_planner_that_drains(store: Store, run: Loop, job: JobRecord) -> None:
    async def scenario() -> None:
        loop = loop_over(store, Solver(nothing))
        waiting = asyncio.create_task(loop.pack(pack_task(job)))
        await asyncio.sleep(0)
        loop.stop()
        with pytest.raises(Unavailable, match="drains"):
            await waiting
        with pytest.raises(Unavailable, match="drains"):
            await loop.pack(pack_task(job))

    run(scenario())


def test_a_caller_learns_why_a_packing_failed_and_a_caller_that_leaves_stops_nothing(
    store: Store, run: Loop, job: JobRecord
) -> None:
    begun, released = asyncio.Event(), asyncio.Event()

    async def slow(job_id: str, step: int) -> None:
        if step == 3 and not begun.is_set():
            begun.set()
            await released.wait()
        elif step == 3:
            raise InvalidInput("lengths do not fit")

    solver = Solver(slow)

    async def scenario() -> None:
        loop = loop_over(store, solver)
        async with running(loop, lambda: is_idle(store)):
            gone = asyncio.create_task(loop.pack(pack_task(job)))
            await begun.wait()
            gone.cancel()
            await asyncio.wait({gone})
            released.set()
            with pytest.raises(InvalidInput, match="lengths do not fit"):
                await loop.pack(pack_task(job))

    run(scenario())
    assert [each for each in solver.steps if each[1] < 3] == [("job", 1), ("job", 2)]


@pytest.mark.parametrize("fault", [BrokenProcessPool("the solver was killed (SIGKILL)"), TimeoutError("it took 60 s")])
def test_S9_a_packing_that_crashes_is_unavailable_and_the_log_says_so(
    fault: Exception, store: Store, run: Loop, job: JobRecord, caplog: pytest.LogCaptureFixture
) -> None:
    async def crash(job_id: str, step: int) -> None:
        if step == 3:
            raise fault

    async def scenario() -> None:
        loop = loop_over(store, Solver(crash))
        async with running(loop, lambda: is_idle(store)):
            told = rf"packing crashed with {type(fault).__name__}: .*; submit the schedule as it is"
            with pytest.raises(Unavailable, match=told):
                await loop.pack(pack_task(job))

    run(scenario())
    assert "job job step 3: packing crashed" in caplog.text
