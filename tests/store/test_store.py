"""The store against a real Redis."""

import json

import numpy as np
import pytest
from redis import Redis
from services_harness import CLUSTER, MODEL, PARAMS, Loop, count, plain_plan, routed_experts

from relibra.errors import Conflict, InvalidInput, NotFound, StaleEpoch, Unavailable, UnknownJob
from relibra.planning import Cluster, ExecutionReport, Phase, PlanId, PlanParams, Schedule
from relibra.store import EncodedPlan, JobRecord, PendingStep, SequenceCounts, StepState, Store

IDS = [f"seq-{index}" for index in range(8)]
COUNTS_SLE = np.stack([count(routed_experts(index, 5 + index)) for index in range(8)])
SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
PLAN = EncodedPlan.of(plain_plan(COUNTS_SLE, SCHEDULE))
OTHER_PLAN = EncodedPlan.of(plain_plan(COUNTS_SLE, SCHEDULE, "another plan", shift=1))


@pytest.fixture
def job(store: Store, run: Loop) -> JobRecord:
    return run(store.register_job("job", MODEL, CLUSTER, PARAMS))


def report_all(store: Store, run: Loop, step: int = 1) -> list[Conflict | None]:
    return run(
        store.put_counts(
            [
                SequenceCounts(job_id="job", step=step, sequence_id=name, counts_LE=counts_LE)
                for name, counts_LE in zip(IDS, COUNTS_SLE, strict=True)
            ]
        )
    )


def test_S3_a_job_keeps_its_epoch_and_refuses_other_content(store: Store, run: Loop, job: JobRecord) -> None:
    assert 0 < job.epoch < 2**63
    assert run(store.register_job("job", MODEL, CLUSTER, PARAMS)) == job
    with pytest.raises(Conflict, match="another params"):
        run(store.register_job("job", MODEL, CLUSTER, PlanParams(seed=4)))
    assert run(store.get_job("job")) == job


def test_S4_a_job_made_anew_has_a_larger_epoch(store: Store, run: Loop, job: JobRecord) -> None:
    run(store._redis.flushall())
    anew = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    assert anew.epoch > job.epoch


def test_jobs_are_listed_and_unknown_ones_refused(store: Store, run: Loop, job: JobRecord) -> None:
    other = run(store.register_job("another", MODEL, Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=0), PARAMS))
    assert run(store.list_jobs()) == [other, job]
    assert other.epoch != job.epoch
    with pytest.raises(UnknownJob, match="'nobody' is not registered"):
        run(store.get_job("nobody"))


def test_L3_counts_come_back_as_they_were_put(store: Store, run: Loop, job: JobRecord) -> None:
    assert report_all(store, run) == [None] * 8
    assert run(store.reported_sequences("job", 1)) == set(IDS)
    order = [5, 0, 7]
    counts_SLE = run(store.get_counts(job, 1, [IDS[index] for index in order]))
    np.testing.assert_array_equal(counts_SLE, COUNTS_SLE[order])
    with pytest.raises(NotFound, match="'nothing' of step 1"):
        run(store.get_counts(job, 1, [IDS[0], "nothing"]))


def test_repeated_counts_are_kept_once_and_conflicting_ones_refused(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    wide = COUNTS_SLE[0].astype(np.uint32)
    other = np.ascontiguousarray(COUNTS_SLE[1][:, ::-1])
    outcomes = run(
        store.put_counts(
            [
                SequenceCounts(job_id="job", step=1, sequence_id=IDS[0], counts_LE=wide),
                SequenceCounts(job_id="job", step=1, sequence_id=IDS[1], counts_LE=other),
                SequenceCounts(job_id="job", step=1, sequence_id="new", counts_LE=other),
                SequenceCounts(job_id="job", step=1, sequence_id="new", counts_LE=wide),
            ]
        )
    )
    assert [type(each) for each in outcomes] == [type(None), Conflict, type(None), Conflict]
    np.testing.assert_array_equal(
        run(store.get_counts(job, 1, [IDS[0], IDS[1], "new"])), [COUNTS_SLE[0], COUNTS_SLE[1], other]
    )


def test_a_schedule_is_kept_once_and_makes_the_step_pending(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    run(store.put_schedule("job", 1, IDS, SCHEDULE))
    run(store.put_schedule("job", 1, IDS, SCHEDULE))
    with pytest.raises(Conflict, match="has another schedule"):
        run(store.put_schedule("job", 1, IDS, Schedule.round_robin(8, 4, CLUSTER)))
    sequence_ids, schedule = run(store.get_schedule("job", 1))
    assert sequence_ids == IDS
    np.testing.assert_array_equal(schedule.row_S, SCHEDULE.row_S)
    (pending,) = run(store.pending_steps())
    assert (pending.job_id, pending.step) == ("job", 1)
    assert run(store.get_step("job", 1)).state is StepState.SOLVING
    with pytest.raises(NotFound, match="step 2 of job 'job' has no schedule"):
        run(store.get_schedule("job", 2))


def test_pending_steps_of_all_jobs_come_longest_waiting_first(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.register_job("another", MODEL, CLUSTER, PARAMS))
    for job_id, step in (("job", 7), ("another", 1), ("job", 2)):
        run(store.put_schedule(job_id, step, IDS, SCHEDULE))
    found: list[PendingStep] = run(store.pending_steps())
    assert [(each.job_id, each.step) for each in found] == [("job", 7), ("another", 1), ("job", 2)]


def test_S3_versions_rise_and_the_same_digest_is_published_once(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.put_schedule("job", 1, IDS, SCHEDULE))
    first = run(store.publish_plan("job", 1, PLAN, epoch=job.epoch))
    assert first == PlanId(epoch=job.epoch, version=1)
    assert run(store.publish_plan("job", 1, PLAN, epoch=job.epoch)) == first
    assert run(store.publish_plan("job", 2, PLAN, epoch=job.epoch)) == PlanId(epoch=job.epoch, version=2)
    assert run(store.pending_steps()) == []
    assert [each.id.version for each in run(store.plans_after("job", 0))] == [1, 2]
    assert [each.step for each in run(store.plans_after("job", 1))] == [2]


def test_S3_another_digest_for_the_same_step_is_refused(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.publish_plan("job", 1, PLAN, epoch=job.epoch))
    with pytest.raises(Conflict, match=PLAN.digest.hex()[:12]):
        run(store.publish_plan("job", 1, OTHER_PLAN, epoch=job.epoch))
    assert run(store.get_plan("job", 1)).digest == PLAN.digest
    assert run(store.publish_plan("job", 2, OTHER_PLAN, epoch=job.epoch)).version == 2


def test_S4_a_stale_epoch_publishes_nothing(store: Store, run: Loop, job: JobRecord, redis_url: str) -> None:
    with pytest.raises(StaleEpoch, match=f"{job.epoch:016x}"):
        run(store.publish_plan("job", 1, PLAN, epoch=job.epoch ^ 1))
    with Redis.from_url(redis_url) as client:
        client.flushall()
    with pytest.raises(StaleEpoch, match="is gone"):
        run(store.publish_plan("job", 1, PLAN, epoch=job.epoch))
    reborn = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    assert reborn.epoch != job.epoch
    with pytest.raises(StaleEpoch, match=f"is in epoch {reborn.epoch:016x}"):
        run(store.publish_plan("job", 1, PLAN, epoch=job.epoch))
    assert run(store.latest_plan("job")) is None


def test_S4_epochs_are_compared_exactly(store: Store, run: Loop, redis_url: str) -> None:
    """Lua numbers are doubles: neighbours above 2**53 would be equal."""
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    epoch = 2**62 + 1
    with Redis.from_url(redis_url) as client:
        document = json.loads(client.get("relibra:{job}:job") or b"")
        client.set("relibra:{job}:job", json.dumps(document | {"epoch": f"{epoch:016x}"}))
    assert job.epoch != epoch
    with pytest.raises(StaleEpoch):
        run(store.publish_plan("job", 1, PLAN, epoch=epoch - 1))
    assert run(store.publish_plan("job", 1, PLAN, epoch=epoch)).epoch == epoch


def test_a_published_plan_is_read_back_whole_and_in_summary(store: Store, run: Loop, job: JobRecord) -> None:
    plan_id = run(store.publish_plan("job", 4, PLAN, epoch=job.epoch))
    record = run(store.latest_plan("job"))
    assert record is not None
    assert (record.id, record.step, record.digest, record.reason) == (plan_id, 4, PLAN.digest, "every expert at home")
    assert record.forecast == PLAN.forecast
    assert run(store.get_plan_file("job", 4)) == PLAN.file
    assert run(store.plan_before("job", 4)) is None
    assert run(store.plan_before("job", 9)) == record
    with pytest.raises(NotFound, match="step 5 of job 'job' has no plan"):
        run(store.get_plan("job", 5))


def test_a_failed_step_says_why_until_it_is_planned(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.put_schedule("job", 1, IDS, SCHEDULE))
    run(store.plan_failed("job", 1, "no load at all"))
    record = run(store.get_step("job", 1))
    assert (record.state, record.failure) == (StepState.FAILED, "no load at all")
    assert run(store.pending_steps()) == []
    run(store.publish_plan("job", 1, PLAN, epoch=job.epoch))
    assert run(store.get_step("job", 1)).state is StepState.PLANNED


def test_steps_are_listed_newest_first(store: Store, run: Loop, job: JobRecord) -> None:
    for step in (3, 10, 4):
        report_all(store, run, step)
    assert [(each.step, each.num_sequences) for each in run(store.list_steps("job", limit=2))] == [(10, 8), (4, 8)]
    assert run(store.list_steps("nobody")) == []


def test_reports_are_kept_by_phase_and_rank(store: Store, run: Loop, job: JobRecord) -> None:
    reports = [
        ExecutionReport(
            step=1,
            phase=phase,
            ep_group=0,
            ep_rank=rank,
            applied=PlanId(epoch=job.epoch, version=1) if rank else None,
            reason="as planned" if rank else "no plan in time",
            realised_load_ML=np.array([[1 << 40, 2, 3]], dtype=np.int64),
            reorder_sent_bytes=5,
            replica_sent_bytes=6,
            plan_wait_s=0.25,
        )
        for phase in Phase
        for rank in (1, 0)
    ]
    for each in [*reports, reports[0]]:
        run(store.put_report("job", each))
    found = run(store.get_reports("job", 1))
    assert [(each.phase, each.ep_rank) for each in found] == [
        (phase, rank) for phase in (Phase.RECOMPUTE, Phase.UPDATE) for rank in (0, 1)
    ]
    assert found[1].applied == reports[0].applied
    assert found[0].applied is None
    np.testing.assert_array_equal(found[1].realised_load_ML, reports[0].realised_load_ML)


def test_redis_out_of_reach_is_unavailable(run: Loop, tmp_path: object) -> None:
    store = Store.open(f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(Unavailable, match=r"nobody\.sock"):
        run(store.ping())
    with pytest.raises(Unavailable):
        run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    run(store.close())


def test_a_full_redis_is_unavailable_and_keeps_what_it_has(store: Store, run: Loop, redis_url: str) -> None:
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    with Redis.from_url(redis_url) as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(Unavailable, match="maxmemory"):
                report_all(store, run)
        finally:
            client.config_set("maxmemory", "0")
    assert run(store.get_job("job")) == job
    assert report_all(store, run) == [None] * 8


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="redis url"):
        Store.open("localhost:6379")
