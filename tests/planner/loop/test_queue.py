"""What waits for a solver, and in which order; packings wait in a planning loop over a real store."""

import asyncio
from collections import Counter
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.planning_loops import PATIENT_S, Solver, is_idle, job_with_two_steps, loop_over, nothing, running
from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, SCHEDULE
from relibra.errors import InvalidInput, Unavailable
from relibra.planner.loop.queue import SolverQueue
from relibra.planner.solve.packing import PackTask
from relibra.planning.schedule import PackingRules
from relibra.store import JobRecord, PendingStep, Store


def step(job_id: str, number: int, submitted_at: float) -> PendingStep:
    return PendingStep(job_id=job_id, step=number, submitted_at=submitted_at)


def test_the_longest_waiting_step_comes_first_among_jobs_without_a_turn() -> None:
    pending = [step("late", 1, 5.0), step("early", 9, 1.0), step("early", 10, 2.0)]
    assert SolverQueue().next_turns(pending, set()) == ["early", "late"]


def test_a_job_that_is_solved_for_waits() -> None:
    assert SolverQueue().next_turns([step("busy", 1, 0.0), step("free", 1, 1.0)], {"busy"}) == ["free"]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=30), st.integers(0, 3))
def test_S6_no_job_gets_a_second_turn_while_another_waits_for_its_first(jobs: list[str], flood: int) -> None:
    waiting = Counter(jobs) + Counter({"a": 10 * flood})
    rounds, queue, order = +waiting, SolverQueue(), []
    while rounds:
        pending = [step(job, number, 0.0) for job, number in rounds.items()]
        job = queue.next_turns(pending, set())[0]
        queue.begin_turn(job)
        order.append(job)
        rounds = rounds - Counter([job])
    first = order[: len(waiting)]
    assert sorted(first) == sorted(waiting)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_job_waits_from_the_first_look_that_finds_it_without_a_solver() -> None:
    clock = Clock()
    queue = SolverQueue(clock)
    queue.note_unsolved(["a"])
    clock.now += 2
    queue.note_unsolved(["a", "b"])
    clock.now += 3
    assert (queue.begin_turn("a"), queue.begin_turn("b"), queue.begin_turn("never seen")) == (5, 3, 0)
    assert queue.begin_turn("a") == 0, "its next step waits anew"


def test_a_job_that_another_planner_solves_for_waits_no_more() -> None:
    clock = Clock()
    queue = SolverQueue(clock)
    queue.note_unsolved(["a"])
    clock.now += 2
    queue.note_unsolved([])
    clock.now += 2
    queue.note_unsolved(["a"])
    clock.now += 1
    assert queue.begin_turn("a") == 1


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
        loop = loop_over(store, solver, num_solvers=1)
        packing = [asyncio.create_task(loop.pack(pack_task(job))) for _ in range(3)]
        await asyncio.sleep(0)  # all wait before the loop runs
        async with running(loop, lambda: is_idle(store)):
            assert await asyncio.gather(*packing) == [(SCHEDULE, "packed")] * 3

    run(scenario())
    # Three packings of one job delay the other job by one packing at most.
    assert solver.steps.index(("other", 1)) <= 1
    assert sorted(solver.steps) == [("job", 1), ("job", 2), *[("job", 3)] * 3, ("other", 1)]


@pytest.mark.parametrize("num_solvers", [2, 3])
def test_S6_packings_without_an_end_leave_a_solver_to_steps(
    store: Store, run: Loop, job: JobRecord, num_solvers: int
) -> None:
    jobs = [job, *(run(store.register_job(f"packer-{index}", MODEL, CLUSTER, PARAMS)) for index in range(3))]
    released, num_packing, most_packing = asyncio.Event(), 0, 0

    async def pack_slowly(job_id: str, step: int) -> None:
        nonlocal num_packing, most_packing
        if step == 3:
            num_packing += 1
            most_packing = max(most_packing, num_packing)
            await released.wait()
            num_packing -= 1

    async def scenario() -> None:
        loop = loop_over(store, Solver(pack_slowly, num_warm=num_solvers), num_solvers=num_solvers)
        packing = [asyncio.create_task(loop.pack(pack_task(each))) for each in jobs[1:]]
        await asyncio.sleep(0)
        # The steps are planned while packings wait, and these end afterwards.
        async with running(loop, lambda: is_idle(store)):
            async with asyncio.timeout(PATIENT_S):
                while not await is_idle(store):
                    pass
            assert num_packing == num_solvers - 1
            released.set()
            assert await asyncio.gather(*packing) == [(SCHEDULE, "packed")] * 3

    run(scenario())
    assert most_packing == num_solvers - 1


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
