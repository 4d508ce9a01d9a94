"""Attempts in the store: who begins and joins one, and what of the older ones is kept."""

import dataclasses

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop, count, routed_experts
from harness.step_samples import COUNTS_SLE, IDS, LONG_S, SCHEDULE, expire, lease_of, publish, report_all, sequence
from relibra.errors import Conflict, LostLease, NotReady, StaleEpoch, UnknownJob
from relibra.planning import PlanParams
from relibra.planning.launch import Launch
from relibra.store import Attempt, JobRecord, Store
from relibra.store.keys import SCHEMA

FIRST = Launch(token="one", owner="host-a:4711", process="driver-1")
SECOND = Launch(token="two", owner="host-b:99", process="driver-2")


def begin(store: Store, run: Loop, launch: Launch, params: PlanParams = PARAMS, known_epoch: int = 0) -> JobRecord:
    return run(store.register_job("job", MODEL, CLUSTER, params, launch=launch, known_epoch=known_epoch))


def registered(attempt: Attempt) -> JobRecord:
    """Return the job as an attempt registered it."""
    return JobRecord(**{each.name: getattr(attempt, each.name) for each in dataclasses.fields(JobRecord)})


def test_L5_the_launch_that_registers_last_trains_the_job_with_any_content(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    second = begin(store, run, SECOND, params=PlanParams(seed=77))
    assert (second.number, second.owner, second.params.seed) == (2, "host-b:99", 77)
    assert second.epoch > first.epoch
    newest, oldest = run(store.list_attempts("job"))
    assert (registered(newest), registered(oldest)) == (second, first)
    assert (newest.ended_at, oldest.ended_at) == (None, newest.began_at)


def test_L5_a_driver_that_starts_again_with_the_token_of_before_begins_an_attempt(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    assert begin(store, run, FIRST) == first
    second = begin(store, run, dataclasses.replace(FIRST, process="driver-1, started again"))
    assert second.number == 2
    assert registered(run(store.join_attempt("job", FIRST.token_hash))) == second


@pytest.mark.parametrize("knows_its_epoch", [True, False])
def test_S4_a_launch_that_was_replaced_cannot_take_the_job_back(store: Store, run: Loop, knows_its_epoch: bool) -> None:
    first = begin(store, run, FIRST)
    second = begin(store, run, SECOND)
    with pytest.raises(StaleEpoch, match=r"attempt 1 of job 'job' is over: attempt 2 began at .* on host-b:99"):
        begin(store, run, FIRST, known_epoch=first.epoch if knows_its_epoch else 0)
    assert run(store.get_job("job")) == second


def test_S3_the_same_process_with_other_content_is_refused(store: Store, run: Loop) -> None:
    begin(store, run, FIRST)
    with pytest.raises(Conflict, match="another params"):
        begin(store, run, FIRST, params=PlanParams(seed=77))


def test_L5_a_process_joins_the_attempt_of_its_token_and_no_other(store: Store, run: Loop) -> None:
    with pytest.raises(UnknownJob):
        run(store.join_attempt("job", FIRST.token_hash))
    first = begin(store, run, FIRST)
    assert registered(run(store.join_attempt("job", FIRST.token_hash))) == first
    with pytest.raises(NotReady, match=r"attempt 1, which began .* on host-a:4711, has another one.*RELIBRA_ATTEMPT"):
        run(store.join_attempt("job", SECOND.token_hash))
    begin(store, run, SECOND)
    with pytest.raises(StaleEpoch, match=r"attempt 1 of job 'job' is over: attempt 2 began"):
        run(store.join_attempt("job", FIRST.token_hash))


def test_L5_a_new_attempt_knows_nothing_of_the_steps_before_it(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    report_all(store, run)
    publish(store, run, first, 1)
    report_all(store, run, 2)
    lease = lease_of(store, run, first, 2)
    second = begin(store, run, SECOND)
    assert run(store.list_steps(second)) == []
    assert run(store.pending_steps()) == ([], {})
    other_LE = count(routed_experts(77, 9))
    assert run(store.put_counts([sequence(second.epoch, IDS[0], other_LE)])) == [None]
    assert run(store.get_counts(second, 1, IDS[:1])).tolist() == [other_LE.tolist()]
    assert run(store.plan_before(second, 9)) is None
    assert run(store.get_counts(first, 1, IDS)).tolist() == COUNTS_SLE.tolist()
    assert [each.step for each in run(store.list_steps(first))] == [2, 1]
    with pytest.raises(LostLease):
        run(store.renew_lease(lease, LONG_S))
    assert lease_of(store, run, second, 1).epoch == second.epoch


def test_L5_nothing_is_written_to_an_attempt_that_is_over(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    begin(store, run, SECOND)
    over = r"attempt 1 of job 'job' is over: attempt 2 began at .* on host-b:99"
    with pytest.raises(StaleEpoch, match=over):
        run(store.put_schedule(first, 1, IDS, SCHEDULE))
    (outcome,) = run(store.put_counts([sequence(first.epoch, "late")]))
    assert isinstance(outcome, StaleEpoch)
    with pytest.raises(StaleEpoch, match=over):
        raise outcome
    assert run(store.list_steps(first)) == []


def test_L5_only_the_current_attempt_can_be_heard(store: Store, run: Loop, redis_url: str) -> None:
    first = begin(store, run, FIRST)
    second = begin(store, run, SECOND)
    with Redis.from_url(redis_url, decode_responses=True) as client:
        client.hset("relibra:{job}:job", "seen_at", "5")
        run(store.see("job", first.epoch))
        assert client.hget("relibra:{job}:job", "seen_at") == "5"
        run(store.see("job", second.epoch))
        assert int(client.hget("relibra:{job}:job", "seen_at") or 0) > 1_000_000_000_000


def test_S7_old_attempts_are_forgotten_and_the_job_takes_all_of_them_along(
    store: Store, run: Loop, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relibra.store.attempts.KNOWN_ATTEMPTS", 4)
    for number in range(6):
        attempt = begin(store, run, Launch(token=f"launch-{number}"))
        report_all(store, run)
        publish(store, run, attempt, 1)
        assert expire(store, run, attempt, [1]) == [1]
        report_all(store, run, 2)
    assert [each.number for each in run(store.list_attempts("job"))] == [6, 5, 4, 3]
    with Redis.from_url(redis_url) as client:
        for kept in ("step:2:counts", "summaries", "floor"):
            assert len(client.keys(f"relibra:{{job}}:*:{kept}")) == 4
        run(store.remove_job("job"))
        assert set(client.keys("*")) - {SCHEMA.encode()} == {b"relibra:{job}:epoch", b"relibra:{job}:fence"}


def test_an_attempt_that_says_so_has_ended_though_last_reports_follow(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    run(store.end_attempt("job", first.epoch))
    run(store.see("job", first.epoch))
    (attempt,) = run(store.list_attempts("job"))
    assert attempt.has_finished
    begin(store, run, FIRST)
    assert not run(store.list_attempts("job"))[0].has_finished, "the process goes on"
    run(store.end_attempt("job", first.epoch))
    second = begin(store, run, SECOND)
    newest, oldest = run(store.list_attempts("job"))
    assert (newest.has_finished, oldest.has_finished) == (False, True)
    with pytest.raises(StaleEpoch):
        run(store.end_attempt("job", first.epoch))
    assert not run(store.list_attempts("job"))[0].has_finished
    run(store.end_attempt("job", second.epoch))
    assert run(store.list_attempts("job"))[0].has_finished


def test_a_training_that_calls_a_minute_after_its_end_has_not_ended(store: Store, run: Loop, redis_url: str) -> None:
    job = begin(store, run, FIRST)
    run(store.end_attempt("job", job.epoch))
    Redis.from_url(redis_url).hincrby("relibra:{job}:job", "finished_at", -61_000)
    run(store.see("job", job.epoch))
    assert not run(store.list_attempts("job"))[0].has_finished
