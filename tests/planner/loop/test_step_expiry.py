import asyncio
import logging
from typing import Any

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, SCHEDULE, publish, report_all
from relibra.planner.loop.step_expiry import StepExpiry
from relibra.planner.metrics import Metrics
from relibra.planner.settings import PlannerSettings
from relibra.planning.launch import Launch
from relibra.store import ExpiryCause, JobRecord, Store
from relibra.store.keys import RETAINED_ATTEMPTS, JobKeys
from relibra.store.summaries import SUMMARY_SIZE_BYTES

DAY_S = 86_400


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:
    return run(store.register_job("job", MODEL, CLUSTER, PARAMS))


def expiry(store: Store, metrics: Metrics | None = None, **settings: float) -> StepExpiry:
    return StepExpiry(store, metrics or Metrics(), PlannerSettings(redis_url="redis://nowhere", **settings))  # type: ignore[arg-type]


def make_older(redis_url: str, job: JobRecord, step: int, age_s: float) -> None:
    with Redis.from_url(redis_url) as client:
        client.zincrby(JobKeys(job.job_id).attempt(job.epoch).of("begun"), -age_s, str(step))


def kept(store: Store, run: Loop, job: JobRecord) -> list[int]:
    return [each.step for each in run(store.list_steps(job))]


def test_S7_bytes_of_a_job_stay_below_the_limit(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    publish(store, run, job, 1)
    (step,), _ = run(store.measure_steps(job))
    metrics = Metrics()
    retained_bytes = 3 * step.size_bytes + 8 * SUMMARY_SIZE_BYTES
    limited = expiry(store, metrics, retained_bytes=retained_bytes, max_open_steps=2)
    for number in range(2, 12):
        report_all(store, run, number)
        publish(store, run, job, number)
        run(limited.apply("job"))
        assert sum(each.size_bytes for each in run(store.measure_steps(job))[0]) <= retained_bytes
    assert kept(store, run, job) == [11, 10, 9]
    summaries = run(store.list_summaries(job))
    assert [each.step for each in summaries] == list(range(8, 0, -1))
    assert {each.expired.cause for each in summaries if each.expired} == {ExpiryCause.BYTES}
    (family,) = metrics.expired_steps.collect()
    (counted,) = [sample.value for sample in family.samples if sample.name.endswith("_total")]
    assert counted == 8


def test_S7_steps_of_an_idle_job_expire_by_age(store: Store, run: Loop, job: JobRecord, redis_url: str) -> None:
    daily = expiry(store, retained_s=DAY_S)
    for step in (1, 2, 3):
        report_all(store, run, step)
        publish(store, run, job, step)
    run(daily.apply("job"))
    for step in (1, 2, 3):
        make_older(redis_url, job, step, 2 * DAY_S)
    run(daily.apply("job"))
    assert kept(store, run, job) == [3, 2, 1], "agents may still fetch these plans"
    with Redis.from_url(redis_url) as client:
        client.hincrby("relibra:{job}:job", "seen_at", -2 * DAY_S * 1000)

    async def sweep() -> None:
        sweeping = asyncio.create_task(daily.run())
        while len(await store.step_numbers(job)) > 1:
            assert not sweeping.done()
            await asyncio.sleep(0.01)
        sweeping.cancel()

    run(asyncio.wait_for(sweep(), timeout=120))
    assert kept(store, run, job) == [3]
    assert [each.step for each in run(store.list_summaries(job))] == [2, 1]


def test_S7_old_attempts_keep_summaries_only(store: Store, run: Loop, redis_url: str) -> None:
    limits = expiry(store)
    for number in range(RETAINED_ATTEMPTS + 2):
        launch = Launch(token=f"launch-{number}")
        attempt = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch))
        report_all(store, run)
        publish(store, run, attempt, 1)
        run(limits.apply("job"))
    attempts = run(store.list_attempts("job"))
    assert [each.number for each in attempts] == [6, 5, 4, 3, 2, 1]
    assert [kept(store, run, each) for each in attempts] == [[1], [1], [1], [1], [], []]
    assert [len(run(store.list_summaries(each))) for each in attempts] == [0, 0, 0, 0, 1, 1]
    with Redis.from_url(redis_url) as client:
        assert len(client.keys("relibra:{job}:*:step:1:plan")) == RETAINED_ATTEMPTS


def test_S9_a_job_that_takes_more_than_it_may_is_named_once(
    store: Store, run: Loop, job: JobRecord, caplog: pytest.LogCaptureFixture
) -> None:
    tight = expiry(store, retained_bytes=1)
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    with caplog.at_level(logging.WARNING):
        run(tight.apply("job"))
        run(tight.apply("job"))
    (said,) = caplog.messages
    assert "job job: its steps take" in said
    assert "retained_bytes is 1; they stay, because they are under way" in said


def test_S6_a_job_whose_expiry_fails_holds_up_no_other_job(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = {name: run(store.register_job(name, MODEL, CLUSTER, PARAMS)) for name in ("bad", "good")}
    measured, measure_steps = asyncio.Event(), store.measure_steps

    async def fail_for_bad(attempt: JobRecord) -> Any:
        if attempt.job_id == "bad":
            raise ValueError("the document does not decode")
        measured.set()
        return await measure_steps(attempt)

    async def sweep() -> None:
        sweeping = asyncio.create_task(expiry(store).run())
        await asyncio.wait_for(measured.wait(), timeout=120)
        sweeping.cancel()

    monkeypatch.setattr(store, "measure_steps", fail_for_bad)
    assert run(store.job_ids()) == sorted(jobs)
    run(sweep())
    assert "job bad" in caplog.text
    assert "the document does not decode" in caplog.text


def test_a_job_that_is_gone_has_no_steps_to_expire(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.remove_job("job"))
    run(expiry(store).apply("job"))


def test_S7_the_summaries_of_old_attempts_do_not_crowd_out_steps(
    store: Store, run: Loop, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = [
        run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=Launch(token=f"t{number}"))) for number in range(3)
    ]
    with Redis.from_url(redis_url) as client:
        for attempt in attempts:
            key = JobKeys("job").attempt(attempt.epoch).of("summaries")
            client.zadd(key, {f'{{"step":{step:0400}}}'.replace(":0", ":"): step for step in range(100)})
        real_bytes = client.memory_usage(key, samples=0) or 0
    taken_bytes = run(store.measure_summaries(attempts))
    assert 0.5 * real_bytes < taken_bytes[0] < 2 * real_bytes
    # Half of this has room for the summaries of one attempt: those of the current one.
    run(expiry(store, retained_bytes=2 * taken_bytes[0]).apply("job"))
    assert run(store.measure_summaries(attempts)) == [0, 0, taken_bytes[2]]
    assert "the summaries of attempt 1, 70000 bytes, are dropped" in caplog.text
    assert "the summaries of attempt 2, 70000 bytes, are dropped" in caplog.text
