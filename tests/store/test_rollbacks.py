"""Going back to an earlier step in the store: what stays, what is forgotten, and who is refused afterwards."""

import dataclasses

import numpy as np
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop, count, plain_plan, routed_experts
from harness.step_samples import (
    COUNTS_SLE,
    IDS,
    LONG_S,
    OTHER_PLAN,
    PLAN,
    SCHEDULE,
    expire,
    lease_of,
    publish,
    report_all,
)
from harness.step_samples import sequence as sequence_of
from relibra.errors import Conflict, Corrupt, LostLease, RolledBack, StaleEpoch, UnknownJob
from relibra.planning import ExecutionReport, Phase, PlanId
from relibra.planning.launch import Launch
from relibra.store import EncodedPlan, JobRecord, Refused, SequenceCounts, Store
from relibra.store.keys import SCHEMA, JobKeys
from relibra.store.rollbacks import way_back

OTHER_LE = count(routed_experts(77, 9))
HOME_LE = CLUSTER.identity_placement(MODEL)


def sequence(attempt: JobRecord, step: int) -> SequenceCounts:
    return sequence_of(attempt.epoch, IDS[0], OTHER_LE, step=step)


def shifted(shift: int) -> EncodedPlan:
    return EncodedPlan.of(plain_plan(COUNTS_SLE, SCHEDULE, shift=shift))


def ran(store: Store, run: Loop, job: JobRecord, step: int, plan_id: PlanId | None) -> None:
    """Keep a report that a rank executed a step under a plan."""
    report = ExecutionReport(
        step=step,
        phase=Phase.UPDATE,
        ep_group=0,
        ep_rank=0,
        applied=plan_id,
        reason="",
        causes=(),
        realised_load_ML=np.zeros((1, MODEL.num_layers), dtype=np.int64),
        reorder_sent_bytes=0,
        replica_sent_bytes=0,
        plan_wait_s=0.0,
    )
    run(store.put_report(job, report))


def train(store: Store, run: Loop, job: JobRecord, steps: range, plan: EncodedPlan = PLAN) -> None:
    for step in steps:
        report_all(store, run, step)
        version = publish(store, run, job, step, plan)
        ran(store, run, job, step, PlanId(epoch=job.epoch, version=version))


def test_L5_steps_from_there_on_are_taken_and_planned_again(store: Store, run: Loop, job: JobRecord) -> None:
    train(store, run, job, range(1, 6))
    again = run(store.rollback("job", job.epoch, 3))
    assert (again.number, again.model, again.owner) == (2, job.model, job.owner)
    assert again.epoch > job.epoch
    assert run(store.get_job("job")) == again
    assert run(store.list_steps(again)) == []
    assert run(store.next_step(again)) == 3
    for step in (3, 4):
        assert run(store.put_counts([sequence(again, step)])) == [None]
        assert run(store.get_counts(again, step, IDS[:1])).tolist() == [OTHER_LE.tolist()]
        report_all(store, run, step)
        assert publish(store, run, again, step, OTHER_PLAN) == 5 + step - 2, "a version came twice"
        assert run(store.get_plan_id(again, step)) == PlanId(epoch=again.epoch, version=5 + step - 2)


def test_L5_the_steps_of_before_stay_with_their_attempt(store: Store, run: Loop, job: JobRecord) -> None:
    train(store, run, job, range(1, 6))
    run(store.rollback("job", job.epoch, 3))
    assert [each.step for each in run(store.list_steps(job))] == [5, 4, 3, 2, 1]
    assert run(store.get_plan(job, 5)).digest == PLAN.digest
    newest, oldest = run(store.list_attempts("job"))
    assert (newest.rolled_back_from, newest.rolled_back_to) == (job.epoch, 3)
    assert (oldest.rolled_back_from, oldest.rolled_back_to, oldest.ended_at) == (None, None, newest.began_at)
    assert (newest.number, newest.token_hash, newest.model) == (2, oldest.token_hash, oldest.model)


def test_S4_nothing_of_before_comes_back(store: Store, run: Loop, job: JobRecord) -> None:
    train(store, run, job, range(1, 4))
    report_all(store, run, 4)
    lease = lease_of(store, run, job, 4)
    again = run(store.rollback("job", job.epoch, 3))
    with pytest.raises(StaleEpoch):
        run(store.publish_plan(lease, PLAN))
    with pytest.raises(LostLease):
        run(store.end_solve(lease, "late"))
    with pytest.raises(LostLease):
        run(store.renew_lease(lease, LONG_S))
    over = r"attempt 1 of job 'job' is over: attempt 2 began at .*, when the training went back to step 3\. .*"
    (late,) = run(store.put_counts([sequence(job, 4)]))
    assert isinstance(late, RolledBack)
    with pytest.raises(RolledBack, match=over):
        raise late
    with pytest.raises(RolledBack, match=over):
        run(store.put_schedule(job, 4, IDS, SCHEDULE))
    with pytest.raises(RolledBack, match=over):
        ran(store, run, job, 3, None)
    run(store.note_refusal(job, Refused.SCHEDULE, 4, Conflict("late")))
    expire(store, run, job, range(1, 9))
    assert run(store.list_steps(again)) == []
    assert run(store.get_refusals(again)) == []
    assert run(store.pending_steps()) == ([], {})


def test_L5_all_processes_of_a_launch_may_say_it_and_it_is_done_once(store: Store, run: Loop, job: JobRecord) -> None:
    train(store, run, job, range(1, 4))
    again = run(store.rollback("job", job.epoch, 2))
    report_all(store, run, 2)
    assert run(store.rollback("job", job.epoch, 2)) == again
    assert [each.step for each in run(store.list_steps(again))] == [2]
    with pytest.raises(RolledBack, match="went back to step 2"):
        run(store.rollback("job", job.epoch, 1))
    third = run(store.rollback("job", again.epoch, 1))
    with pytest.raises(RolledBack, match="attempt 1 of job 'job' is over: attempt 3 began"):
        run(store.rollback("job", job.epoch, 2))
    assert (third.number, run(store.list_steps(third))) == (3, [])


def test_L5_an_attempt_of_another_launch_is_not_rolled_back(store: Store, run: Loop) -> None:
    with pytest.raises(UnknownJob):
        run(store.rollback("job", 1, 1))
    first, second = (
        run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=Launch(token=token))) for token in ("one", "two")
    )
    with pytest.raises(StaleEpoch) as refused:
        run(store.rollback("job", first.epoch, 1))
    assert not isinstance(refused.value, RolledBack)
    assert run(store.get_job("job")) == second


def test_L5_the_launch_stays_the_same(store: Store, run: Loop) -> None:
    launch = Launch(token="one", owner="host-a:4711", process="driver")
    first = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch))
    again = run(store.rollback("job", first.epoch, 1))
    assert run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch)) == again
    assert again.owner == "host-a:4711"
    restarted = dataclasses.replace(launch, process="driver, started again")
    third = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=restarted))
    assert third.number == 3
    assert run(store.list_attempts("job"))[0].rolled_back_from is None
    with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over: attempt 3 began") as refused:
        run(store.rollback("job", first.epoch, 1))
    assert not isinstance(refused.value, RolledBack), "the launch before went back, but another launch came after it"


def test_S4_an_epoch_that_a_failover_lost_does_not_come_back(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as client:
        saved = {key: client.dump(key) for key in client.keys("*")}
        lost = run(store.rollback("job", job.epoch, 3))
        client.delete(*client.keys("*"))
        for key, content in saved.items():
            client.restore(key, 0, content)
    again = run(store.rollback("job", job.epoch, 2))
    assert again.epoch > lost.epoch


def test_S4_rollbacks_count_on_when_the_clock_of_redis_is_behind(store: Store, run: Loop, job: JobRecord) -> None:
    ahead = job.epoch + 10**15
    run(store._redis.set("relibra:{job}:epoch", ahead))
    assert run(store.rollback("job", job.epoch, 3)).epoch == ahead + 1


def test_L5_expired_steps_are_taken_again(store: Store, run: Loop, job: JobRecord) -> None:
    train(store, run, job, range(1, 6))
    expire(store, run, job, [1, 2, 3])
    again = run(store.rollback("job", job.epoch, 2))
    report_all(store, run, 2)
    assert publish(store, run, again, 2) == 6


def test_the_first_plan_starts_from_the_placement_that_the_ranks_have(store: Store, run: Loop, job: JobRecord) -> None:
    def placement(attempt: JobRecord, step: int) -> list[list[int]] | None:
        home_LE = run(store.placement_before(attempt, step))
        return None if home_LE is None else home_LE.tolist()

    def home(shift: int) -> list[list[int]]:
        home_LE: list[list[int]] = ((HOME_LE + shift) % CLUSTER.num_ranks).tolist()
        return home_LE

    assert placement(job, 1) is None
    for step in (1, 2, 3):
        train(store, run, job, range(step, step + 1), shifted(step))
    assert placement(job, 3) == home(2)
    # The plan of a step that the ranks have not begun moves nothing yet.
    report_all(store, run, 4)
    publish(store, run, job, 4, shifted(0))
    again = run(store.rollback("job", job.epoch, 2))
    assert placement(again, 2) == home(3)
    # Until a rank has applied a plan since, it is still the placement of then.
    third = run(store.rollback("job", again.epoch, 2))
    assert placement(third, 2) == home(3)
    report_all(store, run, 2)
    version = publish(store, run, third, 2, shifted(1))
    assert placement(third, 3) == home(1)
    ran(store, run, third, 2, None)
    fourth = run(store.rollback("job", third.epoch, 2))
    assert placement(fourth, 2) == home(3), "no rank applied the plan"
    report_all(store, run, 2)
    assert publish(store, run, fourth, 2, shifted(2)) == version + 1
    fifth = run(store.rollback("job", fourth.epoch, 1))
    assert placement(fifth, 1) == home(2), "without any report the newest plan counts"


@pytest.mark.parametrize(("name", "field"), [("plan", "home_rank"), ("reports", "update/0/0")])
def test_S9_a_job_gets_away_from_what_was_damaged_by_going_back(
    store: Store, run: Loop, job: JobRecord, redis_url: str, name: str, field: str
) -> None:
    train(store, run, job, range(1, 3), shifted(1))
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.epoch).step(2, name), field, b"\0" * 40)
    if name == "plan":
        with pytest.raises(Corrupt, match="field 'home_rank' of the plan of step 2"):
            run(store.get_plan(job, 2))
    again = run(store.rollback("job", job.epoch, 2))
    home_LE = run(store.placement_before(again, 2))
    assert (home_LE is None) == (name == "plan")
    report_all(store, run, 2)
    publish(store, run, again, 2)


def test_S7_going_back_again_and_again_leaves_nothing_behind(
    store: Store, run: Loop, job: JobRecord, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relibra.store.attempts.KNOWN_ATTEMPTS", 4)
    for _ in range(7):
        train(store, run, job, range(1, 5))
        job = run(store.rollback("job", job.epoch, 3))
        job = run(store.rollback("job", job.epoch, 1))
    with Redis.from_url(redis_url) as client:
        assert len(client.keys("relibra:{job}:*:step:*:plan")) <= 4 * 4
        run(store.remove_job("job"))
        assert set(client.keys("*")) - {SCHEMA.encode()} == {b"relibra:{job}:epoch", b"relibra:{job}:fence"}


def test_refusals_of_repeated_steps_name_the_way_out(store: Store, run: Loop, job: JobRecord) -> None:
    train(store, run, job, range(1, 4))
    expire(store, run, job, [1, 2])
    texts = [str(run(store.put_counts([sequence(job, step)]))[0]) for step in (2, 3)]
    for step in (2, 3):
        with pytest.raises(Conflict) as refused:
            run(store.put_schedule(job, step, IDS[:4], SCHEDULE))
        texts.append(str(refused.value))
    for step, text in zip((2, 3, 2, 3), texts, strict=True):
        assert way_back("job", step) in text
    assert "PlannerClient.rollback('job', 3)" in texts[1]
    assert "relibra jobs rollback job 3" in texts[1]
