import time
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import (
    IDS,
    PLAN,
    SCHEDULE,
    expire,
    lease_of,
    publish,
    published_plans,
    report_all,
    sequence,
)
from relibra.errors import Conflict, Unavailable
from relibra.planning import Cause, ExecutionReport, Phase
from relibra.planning.launch import Launch
from relibra.store import ExpiryCause, JobRecord, StepState, Store
from relibra.store.keys import JobKeys


def report(job: JobRecord, step: int, rank: int) -> ExecutionReport:
    return ExecutionReport(
        step=step,
        phase=Phase.UPDATE,
        ep_group=0,
        ep_rank=rank,
        applied=None,
        reason="too late",
        causes=(Cause.LATE,),
        realised_load_ML=np.array([[6 - rank, 2, 3]], dtype=np.int64),
        reorder_sent_bytes=5,
        replica_sent_bytes=6,
        plan_wait_s=0.25,
    )


def test_S7_an_expired_step_leaves_a_summary_and_nothing_else(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    for step in range(1, 6):
        report_all(store, run, step)
    assert expire(store, run, job, [1, 3]) == [1, 3]
    assert [each.step for each in run(store.list_steps(job))] == [5, 4, 2]
    with Redis.from_url(redis_url) as client:
        kept = {key.decode().split(":")[4] for key in client.keys("relibra:{job}:*:step:*")}
        assert kept == {"2", "4", "5"}
        keys = JobKeys("job").attempt(job.epoch)
        assert set(client.hkeys(keys.of("sizes"))) == {b"2", b"4", b"5"}
        assert set(client.zrange(keys.of("begun"), 0, -1)) == {b"2", b"4", b"5"}
    assert [each.step for each in run(store.list_summaries(job))] == [3, 1]
    outcomes = report_all(store, run, 1)
    assert [type(each) for each in outcomes] == [Conflict] * 8
    assert "step 1 of job 'job' has expired" in str(outcomes[0])


def test_S7_a_full_redis_makes_room(store: Store, run: Loop, job: JobRecord, redis_url: str) -> None:
    for step in range(1, 4):
        report_all(store, run, step)
    with Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(Unavailable, match="maxmemory"):
                report_all(store, run, 4)
            assert run(store.claim_sweep("job", 60.0))
            assert expire(store, run, job, [1, 2]) == [1, 2]
            assert [each.step for each in run(store.list_summaries(job))] == [2, 1]
            run(store.remove_job("job"))
        finally:
            client.config_set("maxmemory", "0")


def test_the_summary_says_how_the_step_went(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    version = publish(store, run, job, 1)
    for rank in range(job.cluster.num_ranks - 1):
        run(store.put_report(job, report(job, 1, rank)))
    before = run(store.get_step(job, 1))
    measured, _ = run(store.measure_steps(job))
    now = time.time()
    run(store.expire_steps(job, dict.fromkeys(measured, ExpiryCause.BYTES), now))
    summary = run(store.get_summary(job, 1))
    assert summary is not None
    assert (summary.step, summary.state, summary.num_sequences) == (1, StepState.PLANNED, 8)
    assert before.plan is not None
    assert summary.plan is not None
    assert (summary.plan.id.epoch, summary.plan.id.version) == (job.epoch, version)
    assert summary.plan.prediction.imbalance_before == pytest.approx(before.plan.prediction.imbalance_before, rel=1e-4)
    assert summary.plan.published_at == pytest.approx(before.plan.published_at, abs=0.01)
    (phase,) = summary.phases
    assert (phase.num_reports, phase.num_expected, phase.num_fallbacks) == (3, 4, 3)
    assert phase.fallbacks == {Cause.LATE: 3}
    assert phase.reorder_sent_bytes == 15
    assert summary.expired is not None
    assert summary.expired.cause is ExpiryCause.BYTES
    assert summary.expired.at == pytest.approx(now, abs=0.01)
    assert run(store.get_summary(job, 2)) is None


def test_a_step_that_failed_keeps_the_reason_in_its_summary(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1)
    run(store.end_solve(lease, "there is no load " * 100))
    expire(store, run, job, [1])
    summary = run(store.get_summary(job, 1))
    assert summary is not None
    assert summary.state is StepState.FAILED
    assert summary.failure is not None
    assert summary.failure.startswith("there is no load")
    assert len(summary.failure) == 200


def test_bytes_are_about_those_that_redis_counts(store: Store, run: Loop, job: JobRecord, redis_url: str) -> None:
    report_all(store, run)
    publish(store, run, job, 1)
    for rank in range(job.cluster.num_ranks):
        run(store.put_report(job, report(job, 1, rank)))
    measured, _ = run(store.measure_steps(job))
    with Redis.from_url(redis_url) as client:
        keys = client.keys("relibra:{job}:*:step:1:*")
        assert len(keys) == 8
        real_bytes = sum(client.memory_usage(key, samples=0) or 0 for key in keys)
    assert 0.7 * real_bytes < measured[0].size_bytes < 1.5 * real_bytes
    assert measured[0].num_reports == job.cluster.num_ranks


def test_a_step_ages_from_the_first_look_at_it(store: Store, run: Loop, job: JobRecord, redis_url: str) -> None:
    report_all(store, run)
    assert run(store.measure_steps(job))[0][0].age_s < 60
    with Redis.from_url(redis_url) as client:
        client.zincrby(JobKeys("job").attempt(job.epoch).of("begun"), -5000, "1")
        client.hincrby("relibra:{job}:job", "seen_at", -7_000_000)
    (measured,), silent_s = run(store.measure_steps(job))
    assert 5000 <= measured.age_s < 5060
    assert 7000 <= silent_s < 7060


def test_S7_redis_does_not_grow_with_the_number_of_steps_but_by_summaries(
    store: Store, run: Loop, job: JobRecord, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relibra.store.expiry.MAX_SUMMARIES", 20)
    num_keys, sizes = [], []
    with Redis.from_url(redis_url) as client:
        for step in range(1, 31):
            report_all(store, run, step)
            publish(store, run, job, step)
            expire(store, run, job, [step - 2])
            num_keys.append(client.dbsize())
            sizes.append(sum(client.memory_usage(key, samples=0) or 0 for key in client.keys("*")))
    assert len(set(num_keys[2:])) == 1
    assert (sizes[19] - sizes[9]) / 10 < 1000, "a summary takes a few hundred bytes"
    assert sizes[29] - sizes[24] < 500, "the number of summaries is bounded"
    assert [each.step for each in run(store.list_summaries(job))] == list(range(28, 8, -1))
    assert {each.state for each in run(store.list_steps(job))} == {StepState.PLANNED}
    assert [each.step for each in run(published_plans(store, job))] == [29, 30]
    assert run(store.num_planned_steps(job)) == 30


def test_S4_an_expiry_that_outlasts_its_job_leaves_the_next_one_alone(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    for step in range(1, 5):
        report_all(store, run, step)
    script, anew = store._script, []

    async def paused(name: str, keys: list[str], args: list[Any]) -> Any:
        if name == "expire_steps":
            monkeypatch.undo()
            await store.remove_job("job")
            anew.append(await store.register_job("job", MODEL, CLUSTER, PARAMS))
            assert await store.put_counts([sequence(anew[0].epoch, "seq", step=1)]) == [None]
        return await script(name, keys, args)

    monkeypatch.setattr(store, "_script", paused)
    assert expire(store, run, job, [1, 2]) == []
    assert run(store.reported_sequences(anew[0], 1)) == {"seq"}
    assert [each.step for each in run(store.list_steps(anew[0]))] == [1]
    with Redis.from_url(redis_url) as client:
        assert client.keys(JobKeys("job").attempt(job.epoch).of("*")) == []


def test_L3_a_step_that_comes_to_life_after_the_decision_stays(store: Store, run: Loop, job: JobRecord) -> None:
    for step in (1, 2, 3):
        report_all(store, run, step)
    publish(store, run, job, 3)
    measured, _ = run(store.measure_steps(job))
    first, second, third = measured
    assert not first.is_open
    assert run(store.put_counts([sequence(job.epoch, "late", step=1)])) == [None]
    run(store.put_schedule(job, 2, IDS, SCHEDULE))
    run(store.put_report(job, report(job, 3, 0)))
    causes = dict.fromkeys((first, second, third), ExpiryCause.AGE)
    assert run(store.expire_steps(job, causes, time.time())) == []
    assert [each.step for each in run(store.list_steps(job))] == [3, 2, 1]


def test_S7_what_has_expired_stays_so_when_an_older_step_expires_after_it(
    store: Store, run: Loop, job: JobRecord
) -> None:
    lease = lease_of(store, run, job, 1)
    for step in range(2, 6):
        report_all(store, run, step)
    expire(store, run, job, [2, 3])
    run(store.publish_plan(lease, PLAN))
    expire(store, run, job, [1])
    assert [type(each) for each in report_all(store, run, 3)] == [Conflict] * 8


def test_steps_of_an_attempt_that_is_over_expire_too(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    publish(store, run, job, 1)
    later = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=Launch(token="later")))
    report_all(store, run)
    assert expire(store, run, job, [1]) == [1]
    assert [each.step for each in run(store.list_summaries(job))] == [1]
    assert [each.step for each in run(store.list_steps(later))] == [1]
    assert run(store.list_summaries(later)) == []


def test_S7_a_step_that_was_pending_as_its_attempt_ended_expires(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=Launch(token="later")))
    assert expire(store, run, job, [1]) == [1]
    assert [each.step for each in run(store.list_summaries(job))] == [1]
    with Redis.from_url(redis_url) as client:
        assert not client.exists(*client.keys(f"relibra:{{job}}:{job.epoch}:step:*") or ["nothing"])
        assert client.zcard(JobKeys("job").attempt(job.epoch).of("pending")) == 0


def test_one_planner_in_a_while_looks_for_steps_to_expire(store: Store, run: Loop, job: JobRecord) -> None:
    assert run(store.claim_sweep("job", 60.0))
    assert not run(store.claim_sweep("job", 60.0))
    assert run(store.claim_sweep("job", 0.0))
    run(store.remove_job("job"))
    assert not run(store.claim_sweep("job", 60.0))


def test_S7_many_steps_expire_in_as_many_reads_as_one(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = AsyncMock(wraps=store.get_executions)
    monkeypatch.setattr(store, "get_executions", reads)
    for step in (1, 2, 3):
        report_all(store, run, step)
    assert expire(store, run, job, [1, 2, 3]) == [1, 2, 3]
    assert reads.await_count == 1


def test_S9_a_step_with_a_damaged_report_keeps_its_plan_in_its_summary(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    report_all(store, run)
    publish(store, run, job, 1)
    run(store.put_report(job, report(job, 1, 0)))
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.epoch).step(1, "reports"), "update/0/0", b"damaged")
    assert expire(store, run, job, [1]) == [1]
    summary = run(store.get_summary(job, 1))
    assert summary is not None
    assert (summary.state, summary.num_sequences, summary.phases) == (StepState.PLANNED, len(IDS), ())
    assert summary.failure is not None
    assert "was changed in Redis" in summary.failure
