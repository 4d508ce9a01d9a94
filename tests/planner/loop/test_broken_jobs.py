"""Planning goes on beside a job whose keys in Redis something else than relibra overwrote."""

import asyncio
from collections.abc import Iterator

import pytest
from redis import Redis

from harness.planning_loops import PATIENT_S, Solver, job_with_two_steps, loop_over, nothing, running
from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, SCHEDULE
from relibra.store import JobRecord, Store
from relibra.store.keys import JobKeys


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:
    return job_with_two_steps(store, run)


@pytest.fixture
def other(store: Store, run: Loop, job: JobRecord) -> JobRecord:
    """A job that has its turn after the broken one."""
    return run(store.register_job("other", MODEL, CLUSTER, PARAMS))


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


async def plan_others(store: Store, other: JobRecord, solver: Solver) -> None:
    """Run a loop until it has planned three steps of another job, one after another."""

    async def is_planned() -> bool:
        return await store.num_planned_steps(other) == 3

    async with running(loop_over(store, solver), is_planned):
        for step in (1, 2, 3):
            await store.put_schedule(other, step, IDS, SCHEDULE)
            async with asyncio.timeout(PATIENT_S):
                while await store.num_planned_steps(other) < step:
                    pass


@pytest.mark.parametrize(("name", "value"), [("fence", None), ("version", None), ("version", "newest")])
def test_S6_a_broken_job_stops_no_other(
    store: Store,
    run: Loop,
    job: JobRecord,
    other: JobRecord,
    redis: Redis,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: str | None,
) -> None:
    """The first counter is read before a step is solved, the second when its plan is published."""
    keys, solver = JobKeys("job"), Solver(nothing)
    key = keys.of(name) if name == "fence" else keys.attempt(job.epoch).of(name)
    redis.delete(key)
    redis.rpush(key, "oops") if value is None else redis.set(key, value)
    run(plan_others(store, other, solver))
    mine = [step for job_id, step in solver.steps if job_id == "job"]
    assert mine == ([] if name == "fence" else [1]), "a step that cannot be published is not solved again and again"
    (line,) = (each.message for each in caplog.records if each.message.startswith("job job is set aside"))
    assert value is not None or f"key {key} in Redis is no " in line
    assert "RelibraJobBroken in the runbook" in line


def test_S6_a_mended_job_is_planned_again(
    store: Store, run: Loop, job: JobRecord, other: JobRecord, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    fence = JobKeys("job").of("fence")
    redis.rpush(fence, "oops")

    async def mend() -> None:
        async def is_planned() -> bool:
            return await store.num_planned_steps(job) == 2

        async with running(loop_over(store, Solver(nothing)), is_planned):
            async with asyncio.timeout(PATIENT_S):
                while "job job is set aside" not in caplog.text:
                    await store.ping()
            redis.delete(fence)

    run(mend())


def test_S9_a_damaged_list_of_jobs_is_named_once(
    store: Store, run: Loop, job: JobRecord, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    redis.delete("relibra:jobs")
    redis.set("relibra:jobs", "oops")

    async def look() -> None:
        loop = loop_over(store, Solver(nothing))
        task = asyncio.create_task(loop.run())
        async with asyncio.timeout(PATIENT_S):
            for _ in range(200):
                loop.wake("other")
                await store.ping()
        loop.stop()
        await task

    run(look())
    assert [each.message for each in caplog.records] == [
        "nothing is planned: key relibra:jobs in Redis is no set: something else than relibra wrote it. Nothing is "
        "made of it"
    ]
