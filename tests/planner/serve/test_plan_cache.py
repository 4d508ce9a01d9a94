"""The plan cache over a real store that counts its reads."""

import asyncio
from typing import Any

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import PLAN, publish
from relibra.errors import StaleEpoch, Unavailable, UnknownJob
from relibra.planner.serve.plan_cache import PlanCache
from relibra.store import JobRecord, Store


class CountingStore:
    """Counts how often whole plans are read, and fails the next `num_failures` reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.num_reads = 0
        self.num_failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get_packed_plan(self, job: JobRecord, step: int) -> Any:
        self.num_reads += 1
        if self.num_failures:
            self.num_failures -= 1
            raise Unavailable("Redis does not serve")
        return await self._store.get_packed_plan(job, step)


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:
    return run(store.register_job("job", MODEL, CLUSTER, PARAMS))


@pytest.fixture
def counting(store: Store, run: Loop, job: JobRecord) -> CountingStore:
    for step in (1, 2, 3):
        publish(store, run, job, step)
    return CountingStore(store)


def test_many_fetches_at_once_read_once_even_if_one_hangs_up(
    counting: CountingStore, run: Loop, job: JobRecord
) -> None:
    async def scenario() -> None:
        cache = PlanCache(counting)
        fetches = [asyncio.create_task(cache.get("job", job.epoch, 1)) for _ in range(64)]
        await asyncio.sleep(0)
        fetches[0].cancel()
        plans = await asyncio.gather(*fetches[1:])
        assert counting.num_reads == 1
        assert all(plan is plans[0] for plan in plans)
        assert plans[0].plan.digest == PLAN.digest

    run(scenario())


def test_S7_only_the_last_plans_are_held(counting: CountingStore, run: Loop, job: JobRecord) -> None:
    plan = run(PlanCache(counting).get("job", job.epoch, 1))
    counting.num_reads = 0
    cache = PlanCache(counting, max_size_bytes=2 * plan.ByteSize())
    for step in (1, 2, 1, 3, 1):
        run(cache.get("job", job.epoch, step))
    assert counting.num_reads == 3
    run(cache.get("job", job.epoch, 2))
    assert counting.num_reads == 4


def test_the_plan_fetched_last_is_held_even_if_it_is_larger_than_the_cache(
    counting: CountingStore, run: Loop, job: JobRecord
) -> None:
    cache = PlanCache(counting, max_size_bytes=1)
    for _ in range(3):
        run(cache.get("job", job.epoch, 1))
    assert counting.num_reads == 1


def test_the_plans_of_many_jobs_are_held_at_the_same_time(counting: CountingStore, run: Loop, job: JobRecord) -> None:
    jobs = [job]
    for number in range(20):
        jobs.append(run(counting.register_job(f"job-{number}", MODEL, CLUSTER, PARAMS)))
        publish(counting, run, jobs[-1], 1)
    cache = PlanCache(counting)
    for _ in range(2):
        for each in jobs:
            assert run(cache.get(each.job_id, each.epoch, 1)) is not None
    assert counting.num_reads == len(jobs)


def test_what_failed_or_is_not_there_is_looked_for_again(counting: CountingStore, run: Loop, job: JobRecord) -> None:
    cache = PlanCache(counting)
    counting.num_failures = 1
    with pytest.raises(Unavailable):
        run(cache.get("job", job.epoch, 1))
    assert run(cache.get("job", job.epoch, 1)) is not None
    assert run(cache.get("job", job.epoch, 9)) is None
    publish(counting, run, job, 9)
    assert run(cache.get("job", job.epoch, 9)) is not None
    with pytest.raises(UnknownJob):
        run(cache.get("nobody", job.epoch, 1))


def test_S4_a_re_created_job_is_noticed(counting: CountingStore, run: Loop, job: JobRecord) -> None:
    cache = PlanCache(counting, fresh_s=0.0)
    before = run(cache.get("job", job.epoch, 1))
    assert run(cache.get("job", job.epoch, 1)) is before
    assert counting.num_reads == 1
    run(counting.remove_job("job"))
    with pytest.raises(UnknownJob):
        run(cache.get("job", job.epoch, 1))
    again = run(counting.register_job("job", MODEL, CLUSTER, PARAMS))
    publish(counting, run, again, 1)
    with pytest.raises(StaleEpoch):
        run(cache.get("job", job.epoch, 1))
    assert run(cache.get("job", again.epoch, 1)).plan.id.epoch > before.plan.id.epoch


def test_S4_a_plan_of_before_is_not_served_to_the_attempt_that_follows(
    counting: CountingStore, run: Loop, job: JobRecord
) -> None:
    cache = PlanCache(counting, fresh_s=3600.0)
    before = run(cache.get("job", job.epoch, 1))
    run(counting.remove_job("job"))
    again = run(counting.register_job("job", MODEL, CLUSTER, PARAMS))
    assert run(cache.get("job", again.epoch, 1)) is None
    publish(counting, run, again, 1)
    assert run(cache.get("job", again.epoch, 1)).plan.id.epoch > before.plan.id.epoch


def test_S4_plans_of_a_job_are_asked_for_again_once_another_attempt_began(
    counting: CountingStore, store: Store, run: Loop, job: JobRecord
) -> None:
    cache = PlanCache(counting, fresh_s=3600)

    async def begin_again() -> None:
        assert await cache.get("job", job.epoch, 1)
        await store.rollback("job", job.epoch, 0)
        assert await cache.get("job", job.epoch, 1)
        cache.forget("another")
        assert await cache.get("job", job.epoch, 1)
        cache.forget("job")
        with pytest.raises(StaleEpoch):
            await cache.get("job", job.epoch, 1)

    run(begin_again())
