import dataclasses

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually
from harness.step_samples import IDS, LONG_S, PLAN, SCHEDULE, lease_of
from relibra.errors import LostLease
from relibra.store import JobRecord, StepState, Store


def test_one_lease_a_job_on_its_longest_waiting_step(store: Store, run: Loop, job: JobRecord) -> None:
    other = run(store.register_job("other", MODEL, CLUSTER, PARAMS))
    assert run(store.take_lease("job", LONG_S)) is None
    lease = lease_of(store, run, job, 7)
    run(store.put_schedule(job, 3, IDS, SCHEDULE))
    assert run(store.take_lease("job", LONG_S)) is None
    lease_of(store, run, other, 1)
    run(store.publish_plan(lease, PLAN))
    following = run(store.take_lease("job", LONG_S))
    assert (following.step, following.epoch) == (3, job.epoch)
    assert following.token > lease.token


def test_S4_a_lease_that_ended_can_neither_renew_nor_publish_nor_fail(store: Store, run: Loop, job: JobRecord) -> None:
    lost = lease_of(store, run, job, 1, lease_s=0.05)
    taken = eventually(lambda: run(store.take_lease("job", LONG_S)))
    assert taken.step == 1
    for late in (store.renew_lease(lost, LONG_S), store.publish_plan(lost, PLAN), store.end_solve(lost, "too late")):
        with pytest.raises(LostLease):
            run(late)
    assert run(store.get_step(job, 1)).state is StepState.SOLVING
    run(store.return_lease(lost))
    run(store.renew_lease(taken, LONG_S))
    assert run(store.publish_plan(taken, PLAN)).version == 1


def test_S4_a_lease_that_ended_cannot_publish_even_if_nobody_took_it(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1, lease_s=0.05)
    eventually(lambda: not run(store._redis.exists("relibra:{job}:lease")))
    with pytest.raises(LostLease, match="its plan is dropped"):
        run(store.publish_plan(lease, PLAN))
    assert run(store.latest_plan(job)) is None


def test_a_returned_lease_is_free_at_once(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1)
    run(store.return_lease(lease))
    assert run(store.take_lease("job", LONG_S)).token > lease.token


def test_a_renewed_lease_lives_longer(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1, lease_s=LONG_S / 2)
    run(store.renew_lease(lease, LONG_S))
    assert run(store._redis.pttl("relibra:{job}:lease")) > LONG_S / 2 * 1000


def test_a_step_that_cannot_be_planned_fails_until_it_is_planned(store: Store, run: Loop, job: JobRecord) -> None:
    assert run(store.end_solve(lease_of(store, run, job, 1), "no load at all"))
    record = run(store.get_step(job, 1))
    assert (record.state, record.failure) == (StepState.FAILED, "no load at all")
    assert run(store.pending_steps()) == ([], {})


def test_a_crashing_step_is_tried_again_by_anybody_but_not_for_ever(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    outcomes = [run(store.end_solve(run(store.take_lease("job", LONG_S)), "it dies", max_crashes=3)) for _ in range(3)]
    assert outcomes == [False, False, True]
    assert run(store.get_step(job, 1)).failure == "it dies"


def test_S4_a_lease_of_an_older_epoch_ends_no_step(store: Store, run: Loop, job: JobRecord) -> None:
    lease = lease_of(store, run, job, 1)
    with pytest.raises(LostLease):
        run(store.end_solve(dataclasses.replace(lease, epoch=job.epoch - 1), "stale"))


def test_L2_a_lease_that_a_clock_set_back_made_endless_is_taken_over(store: Store, run: Loop, job: JobRecord) -> None:
    held = lease_of(store, run, job, 1)
    assert run(store.take_lease("job", LONG_S)) is None
    # The time that the lease has left if the clock of Redis is set back by a day.
    run(store._redis.pexpire("relibra:{job}:lease", 86_400_000))
    taken = run(store.take_lease("job", LONG_S))
    assert taken is not None
    assert taken.token > held.token
    with pytest.raises(LostLease):
        run(store.publish_plan(held, PLAN))
