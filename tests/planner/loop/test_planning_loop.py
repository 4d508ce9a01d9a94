"""The planning loop against a real store, with solvers that misbehave."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from harness.planning_loops import PATIENT_S, Solver, is_idle, job_with_two_steps, loop_over, nothing, running
from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, OTHER_PLAN, SCHEDULE, published_plans
from relibra.errors import InvalidInput, Unavailable
from relibra.planner.metrics import Metrics
from relibra.planner.plan_notifier import PlanNotifier
from relibra.store import JobRecord, Lease, StepState, Store


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:
    return job_with_two_steps(store, run)


async def plan_until(
    store: Store,
    solver: Solver,
    until: Callable[[], Awaitable[bool]],
    notifier: PlanNotifier | None = None,
    **settings: Any,
) -> Metrics:
    metrics = Metrics()
    async with running(loop_over(store, solver, notifier, metrics, **settings), until):
        pass
    return metrics


def outcomes(metrics: Metrics) -> dict[str, float]:
    (family,) = metrics.solves.collect()
    found = {each.labels["outcome"]: each.value for each in family.samples if each.name.endswith("_total")}
    # Some outcomes are counted from zero.
    return {outcome: number for outcome, number in found.items() if number}


def test_pending_steps_are_planned_in_order_and_announced(store: Store, run: Loop, job: JobRecord) -> None:
    notifier, solver = PlanNotifier(), Solver(nothing)
    ring = notifier.listen("job")
    metrics = run(plan_until(store, solver, lambda: is_idle(store), notifier))
    assert solver.steps == [("job", 1), ("job", 2)]
    assert ring.is_set()
    assert [each.step for each in run(published_plans(store, job))] == [1, 2]
    assert outcomes(metrics) == {"published": 2}


def test_L2_a_planner_whose_solver_is_not_warm_leaves_steps_to_others(store: Store, run: Loop, job: JobRecord) -> None:
    cold, warm = Solver(nothing), Solver(nothing)
    cold.obstacle = "the solver warms up"

    async def both() -> None:
        loops = [loop_over(store, each) for each in (cold, warm)]
        running = [asyncio.create_task(each.run()) for each in loops]
        async with asyncio.timeout(PATIENT_S):
            while not await is_idle(store):
                pass
        loops[1].stop()
        await running[1]
        await store.put_schedule(job, 3, IDS, SCHEDULE)
        cold.obstacle = ""
        loops[0].wake("job")
        async with asyncio.timeout(PATIENT_S):
            while not await is_idle(store):
                pass
        loops[0].stop()
        await running[0]

    run(both())
    assert warm.steps == [("job", 1), ("job", 2)]
    assert cold.steps == [("job", 3)]


def test_L2_a_step_waits_for_a_warm_solver_without_a_lease(store: Store, run: Loop, job: JobRecord) -> None:
    other = run(store.register_job("other", MODEL, CLUSTER, PARAMS))
    run(store.put_schedule(other, 1, IDS, SCHEDULE))
    released = asyncio.Event()

    async def hang(job_id: str, step: int) -> None:
        if job_id == "job" and step == 1:
            await released.wait()

    solver = Solver(hang, num_warm=1)

    async def is_done() -> bool:
        if solver.steps and solver.num_warm == 1:
            assert {each.job_id for each in (await store.pending_steps())[0] if each.is_leased} == {"job"}
            assert solver.steps == [("job", 1)]
            solver.num_warm = 2
        if await store.num_planned_steps(other) == 1:
            released.set()
        return await is_idle(store)

    run(plan_until(store, solver, is_done))
    assert solver.steps[:2] == [("job", 1), ("other", 1)]


def test_a_step_that_another_planner_solved_is_tried_once_and_forgotten(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver, asked, take_lease = Solver(nothing), [], store.take_lease
    loop = loop_over(store, solver)

    async def take(job_id: str, lease_s: float) -> Lease | None:
        asked.append(job_id)
        return await take_lease(job_id, lease_s)

    async def look() -> None:
        await loop._view.look()  # sees the step, which is gone before a solver takes it
        await store.remove_job("job")
        monkeypatch.setattr(store, "take_lease", take)
        for _ in range(5):
            await loop._start_solves()

    job_with_two_steps(store, run)
    run(look())
    assert asked == ["job"]


def test_a_step_that_cannot_be_planned_fails_with_its_reason(store: Store, run: Loop, job: JobRecord) -> None:
    async def refuse(job_id: str, step: int) -> None:
        if step == 1:
            raise InvalidInput("there is no load")

    metrics = run(plan_until(store, Solver(refuse), lambda: is_idle(store)))
    assert run(store.get_step(job, 1)).failure == "there is no load"
    assert run(store.get_step(job, 2)).state is StepState.PLANNED
    assert outcomes(metrics) == {"failed": 1, "published": 1}


@pytest.mark.parametrize("error", [BrokenProcessPool("the worker died"), TimeoutError("the solve took too long")])
def test_a_crash_is_logged_tried_again_and_given_up(
    store: Store, run: Loop, job: JobRecord, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def crash(job_id: str, step: int) -> None:
        if step == 1:
            raise error

    solver = Solver(crash)
    metrics = run(plan_until(store, solver, lambda: is_idle(store)))
    assert solver.steps.count(("job", 1)) == 3
    assert run(store.get_step(job, 2)).state is StepState.PLANNED
    assert f"crashed 3 times, at last with {type(error).__name__}: {error}" in (
        run(store.get_step(job, 1)).failure or ""
    )
    assert "planning crashed" in caplog.text
    assert outcomes(metrics) == {"crashed": 2, "failed": 1, "published": 1}


def test_an_unreachable_store_fails_no_step(store: Store, run: Loop, job: JobRecord) -> None:
    outages = 5

    async def out_of_reach(job_id: str, step: int) -> None:
        nonlocal outages
        if outages:
            outages -= 1
            raise Unavailable("Redis does not serve")

    run(plan_until(store, Solver(out_of_reach), lambda: is_idle(store)))
    assert outages == 0
    assert {each.state for each in run(store.list_steps(job))} == {StepState.PLANNED}


def test_S4_a_lease_taken_over_mid_solve_publishes_nothing_and_stops_the_solve(
    store: Store, run: Loop, job: JobRecord
) -> None:
    cancelled = []

    async def paused(job_id: str, step: int) -> None:
        if not cancelled:
            # Another planner takes the lease when it has ended, and publishes first.
            await store._redis.delete("relibra:{job}:lease")
            lease = await store.take_lease("job", 60)
            assert lease is not None
            await store.publish_plan(lease, OTHER_PLAN)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(step)
                raise

    metrics = run(plan_until(store, Solver(paused), lambda: is_idle(store), lease_s=0.2))
    assert cancelled == [1]
    assert run(store.get_plan(job, 1)).digest == OTHER_PLAN.digest
    # A busy machine may lose further leases, which are as short.
    assert outcomes(metrics).keys() == {"LostLease", "published"}
    assert outcomes(metrics)["published"] == 1


def test_S4_a_plan_of_an_older_epoch_is_not_published(store: Store, run: Loop, job: JobRecord) -> None:
    async def re_create(job_id: str, step: int) -> None:
        await store.remove_job("job")
        await store.register_job("job", MODEL, CLUSTER, PARAMS)

    # The lease outlasts any delay, so that the epoch alone can stop the plan.
    metrics = run(plan_until(store, Solver(re_create), lambda: is_idle(store)))
    assert run(store.latest_plan(run(store.get_job("job")))) is None
    assert outcomes(metrics) == {"StaleEpoch": 1}


def test_S6_jobs_take_turns_and_one_that_hangs_holds_up_nobody(store: Store, run: Loop, job: JobRecord) -> None:
    other = run(store.register_job("other", MODEL, CLUSTER, PARAMS))
    for step in (1, 2, 3):
        run(store.put_schedule(other, step, IDS, SCHEDULE))
    released = asyncio.Event()

    async def hang(job_id: str, step: int) -> None:
        if job_id == "job" and step == 1:
            await released.wait()

    async def others_are_done() -> bool:
        done = await store.num_planned_steps(other) == 3
        if done:
            released.set()
        return done and await is_idle(store)

    solver = Solver(hang)
    run(plan_until(store, solver, others_are_done))
    assert solver.steps[0] == ("job", 1)
    assert solver.steps[-1] == ("job", 2)


def queue_waits(metrics: Metrics) -> tuple[float, float]:
    """Return how many waits for a solver were observed, and their sum in seconds."""
    (family,) = metrics.queue_wait_s.collect()
    found = {each.name.rpartition("_")[2]: each.value for each in family.samples}
    return found["count"], found["sum"]


def test_a_job_waits_for_a_solver_but_not_for_its_own_step_before(store: Store, run: Loop, job: JobRecord) -> None:
    async def see_the_queue(job_id: str, step: int) -> None:
        assert {each.job_id for each in (await store.pending_steps())[0] if each.is_leased} == {job_id}

    alone = run(plan_until(store, Solver(see_the_queue, num_warm=1), lambda: is_idle(store)))
    assert queue_waits(alone) == (2, 0)
    other = run(store.register_job("other", MODEL, CLUSTER, PARAMS))
    run(store.put_schedule(job, 3, IDS, SCHEDULE))
    run(store.put_schedule(other, 1, IDS, SCHEDULE))
    num_waits, waited_s = queue_waits(run(plan_until(store, Solver(see_the_queue, num_warm=1), lambda: is_idle(store))))
    assert num_waits == 2
    assert waited_s > 0


def test_S7_old_steps_expire_where_every_step_fails(store: Store, run: Loop, job: JobRecord) -> None:
    async def refuse(job_id: str, step: int) -> None:
        raise InvalidInput("there is no load")

    for step in range(3, 7):
        run(store.put_schedule(job, step, IDS, SCHEDULE))
    run(plan_until(store, Solver(refuse), lambda: is_idle(store), retained_steps=2))
    assert [each.step for each in run(store.list_steps(job))] == [6, 5]


def test_S7_old_steps_expire_as_new_ones_are_published(store: Store, run: Loop, job: JobRecord) -> None:
    for step in range(3, 7):
        run(store.put_schedule(job, step, IDS, SCHEDULE))
    run(plan_until(store, Solver(nothing), lambda: is_idle(store), retained_steps=2))
    assert [each.step for each in run(store.list_steps(job))] == [6, 5]


def test_L1_ranks_hear_of_a_plan_and_the_next_solve_begins_before_old_steps_expire(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier, solver, released = PlanNotifier(), Solver(nothing), asyncio.Event()
    ring, measure_steps = notifier.listen("job"), store.measure_steps

    async def held_up(attempt: JobRecord) -> Any:
        await released.wait()
        return await measure_steps(attempt)

    async def has_gone_on() -> bool:
        done = await store.num_planned_steps(job) == 3 and ring.is_set()
        if done:
            released.set()
        return done

    run(store.put_schedule(job, 3, IDS, SCHEDULE))
    monkeypatch.setattr(store, "measure_steps", held_up)
    metrics = run(plan_until(store, solver, has_gone_on, notifier, retained_steps=2))
    assert solver.steps == [("job", 1), ("job", 2), ("job", 3)]
    assert outcomes(metrics) == {"published": 3}
    assert [each.step for each in run(store.list_steps(job))] == [3, 2], "the loop ends after the expiry"


@pytest.mark.parametrize("error", [Unavailable("Redis does not serve"), RuntimeError("a bug")])
def test_S9_an_expiry_that_fails_is_not_called_an_unpublished_plan(
    store: Store,
    run: Loop,
    job: JobRecord,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    async def fail(attempt: JobRecord) -> Any:
        raise error

    monkeypatch.setattr(store, "measure_steps", fail)
    metrics = run(plan_until(store, Solver(nothing), lambda: is_idle(store)))
    assert outcomes(metrics) == {"published": 2}
    assert "expire" in caplog.text
    assert str(error) in caplog.text
    assert "not published" not in caplog.text
    assert "planning failed" not in caplog.text
