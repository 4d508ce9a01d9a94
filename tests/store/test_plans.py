import dataclasses
import threading
import zlib

import numpy as np
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop, plain_plan
from harness.step_samples import COUNTS_SLE, OTHER_PLAN, PLAN, SCHEDULE, lease_of, publish, published_plans
from relibra.errors import Conflict, NotFound, StaleEpoch
from relibra.planning import PlanId, check_plan
from relibra.store import JobRecord, Store
from relibra.store.keys import JobKeys


def test_S3_versions_rise_and_the_same_digest_is_published_once(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1)
    first = run(store.publish_plan(lease, PLAN))
    assert first == PlanId(epoch=job.epoch, version=1)
    # The answer may be lost on its way. The lease has ended then, but publishing the same plan again succeeds.
    assert run(store.publish_plan(lease, PLAN)) == first
    assert publish(store, run, job, 2) == 2
    assert run(store.pending_steps()) == ([], {})
    assert [each.id.version for each in run(published_plans(store, job))] == [1, 2]
    assert run(store.num_planned_steps(job)) == 2


def test_S3_another_digest_for_the_same_step_is_refused(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1)
    run(store.publish_plan(lease, PLAN))
    with pytest.raises(Conflict, match=PLAN.digest.hex()[:12]):
        run(store.publish_plan(lease, OTHER_PLAN))
    assert run(store.get_plan(job, 1)).digest == PLAN.digest
    assert publish(store, run, job, 2, OTHER_PLAN) == 2


def test_S4_a_stale_epoch_publishes_nothing(store: Store, run: Loop, job: JobRecord, redis_url: str) -> None:
    lease = lease_of(store, run, job, 1)
    with pytest.raises(StaleEpoch, match=f"{job.epoch:016x}"):
        run(store.publish_plan(dataclasses.replace(lease, epoch=job.epoch - 1), PLAN))
    with Redis.from_url(redis_url) as client:
        client.flushall()
    with pytest.raises(StaleEpoch, match="is gone"):
        run(store.publish_plan(lease, PLAN))
    reborn = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    with pytest.raises(StaleEpoch, match=f"is in epoch {reborn.epoch:016x}"):
        run(store.publish_plan(lease, PLAN))
    assert run(store.latest_plan(reborn)) is None


def test_S9_a_plan_whose_id_was_damaged_is_named_and_those_around_it_are_read(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    for step in (1, 2, 3):
        publish(store, run, job, step)
    key = JobKeys("job").attempt(job.epoch).step(2, "plan")
    for field in ("epoch", "version", "digest", "published_at"):
        with Redis.from_url(redis_url) as client:
            before = client.hget(key, field)
            client.hset(key, field, b"\0\xff")
        assert [each.step for each in run(published_plans(store, job))] == [1, 3]
        failure = run(store.get_step(job, 2)).failure
        assert failure.startswith("the plan of step 2 of job 'job' was changed in Redis since it was stored")
        with Redis.from_url(redis_url) as client:
            client.hset(key, field, before)


def test_a_published_plan_is_read_back_whole_and_in_summary(store: Store, run: Loop, job: JobRecord) -> None:
    publish(store, run, job, 4)
    record = run(store.latest_plan(job))
    assert record is not None
    assert (record.id.version, record.step, record.digest) == (1, 4, PLAN.digest)
    whole = plain_plan(COUNTS_SLE, SCHEDULE)
    assert (record.reason, record.prediction) == (whole.reason, whole.prediction)
    plan = run(store.get_plan(job, 4))
    check_plan(plan)
    assert plan.digest == PLAN.digest
    assert run(store.plan_before(job, 4)) is None
    assert run(store.plan_before(job, 9)) == record
    with pytest.raises(NotFound, match=r"step 5 of job 'job' has no plan"):
        run(store.get_plan(job, 5))
    assert run(store.get_packed_plan(job, 5)) is None
    assert run(store.get_plan_id(job, 5)) is None
    packed, arrays = run(store.get_packed_plan(job, 4))
    assert packed == record
    assert run(store.get_plan_id(job, 4)) == record.id
    np.testing.assert_array_equal(arrays["home_rank"].unpack(), whole.home_rank_LE)


def test_a_plan_tells_how_long_it_took_from_its_schedule(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1)
    (waiting,), _ = run(store.pending_steps())
    run(store.publish_plan(lease, PLAN))
    step = run(store.get_step(job, 1))
    assert step.plan is not None
    assert step.submitted_at == step.plan.submitted_at == waiting.submitted_at
    assert step.plan.latency_s == step.plan.published_at - waiting.submitted_at > 0


def test_S9_a_damaged_placement_costs_no_later_step_its_plan(
    store: Store, run: Loop, job: JobRecord, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(store, run, job, 1)
    publish(store, run, job, 2, OTHER_PLAN)
    first_LE, second_LE = (run(store.get_plan(job, step)).home_rank_LE for step in (1, 2))
    with Redis.from_url(redis_url) as client:
        for step, field in ((2, "meta"), (2, "home_rank"), (1, "home_rank")):
            home_LE = run(store.placement_before(job, 3))
            np.testing.assert_array_equal(home_LE, first_LE if (step, field) == (1, "home_rank") else second_LE)
            client.hset(JobKeys("job").attempt(job.epoch).step(step, "plan"), field, b"damaged")
    assert "field 'home_rank' of the plan of step 2" in caplog.text
    assert run(store.placement_before(job, 3)) is None, "the plain placement"


def test_S6_a_plan_is_checked_off_the_event_loop(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, run, job, 1)
    threads = set[str]()
    checksum = zlib.crc32

    def watched(data: bytes) -> int:
        threads.add(threading.current_thread().name)
        return checksum(data)

    monkeypatch.setattr("relibra.store.seal.zlib.crc32", watched)
    assert run(store.get_packed_plan(job, 1))
    assert threads
    assert threading.main_thread().name not in threads
