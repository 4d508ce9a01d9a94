"""Attempts in the store: which launch may begin one, and what of the older ones is kept."""

import dataclasses

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop, count, routed_experts
from harness.step_samples import COUNTS_SLE, IDS, LONG_S, SCHEDULE, expire, lease_of, publish, report_all, sequence
from relibra.errors import AlreadyRunning, Conflict, LostLease, StaleEpoch
from relibra.planning import PlanParams
from relibra.planning.launch import Launch
from relibra.store import JobRecord, Store
from relibra.store.keys import SCHEMA

FIRST = Launch(token="one", owner="host-a:4711")
SECOND = Launch(token="two", owner="host-b:99")


def begin(store: Store, run: Loop, launch: Launch, silence_s: float = 0.0, params: PlanParams = PARAMS) -> JobRecord:
    return run(store.register_job("job", MODEL, CLUSTER, params, launch=launch, silence_s=silence_s))


def begin_earlier(redis_url: str) -> None:
    """Let the current attempt have begun ten seconds earlier; the store allows an age to be a second too low."""
    with Redis.from_url(redis_url) as client:
        client.hincrby("relibra:{job}:job", "began_ms", -10_000)


def test_L5_a_live_attempt_refuses_another_launch_with_its_own_address(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    with pytest.raises(AlreadyRunning, match=r"attempt 1, which host-a:4711 launched at .* heard 0 s ago.*Stop the"):
        begin(store, run, SECOND, silence_s=LONG_S)
    assert run(store.get_job("job")) == first
    assert begin(store, run, FIRST, silence_s=LONG_S) == first


def test_L5_a_silent_attempt_makes_room_for_one_with_any_content(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    second = begin(store, run, SECOND, params=PlanParams(seed=77))
    assert (second.number, second.owner, second.params.seed) == (2, "host-b:99", 77)
    assert second.epoch > first.epoch
    newest, oldest = run(store.list_attempts("job"))
    assert (newest.record, oldest.record) == (second, first)
    assert (newest.ended_at, oldest.ended_at) == (None, newest.began_at)


def test_S3_the_same_launch_with_other_content_is_refused(store: Store, run: Loop) -> None:
    begin(store, run, FIRST)
    with pytest.raises(Conflict, match="another params"):
        begin(store, run, FIRST, params=PlanParams(seed=77))


def test_L5_a_launcher_that_starts_its_workers_again_need_not_wait(store: Store, run: Loop) -> None:
    def of(token: str, restart: int, launch: str = "slurm 7.0") -> Launch:
        return Launch(token=token, launch=launch, restart=restart)

    first = begin(store, run, of("a", 0), LONG_S)
    assert begin(store, run, of("b", 0), LONG_S) == first, "another process of the same launch"
    second = begin(store, run, of("c", 1), LONG_S)
    assert second.number == 2
    assert begin(store, run, of("c", 2), LONG_S).number == 3, "the token may be an environment variable that stays"
    for late in (of("a", 0), of("a", 3, "slurm 8.0")):
        with pytest.raises(AlreadyRunning):
            begin(store, run, late, LONG_S)


def test_L5_workers_that_are_younger_than_the_attempt_of_their_launcher_begin_another(
    store: Store, run: Loop, redis_url: str
) -> None:
    """torchrun does not count a restart that another node caused, so all that has changed is the processes."""

    def of(token: str, age_s: float | None) -> Launch:
        return Launch(token=token, launch="torchelastic job host-a 7 1000", restart=0, age_s=age_s)

    first = begin(store, run, of("a", 30), LONG_S)
    assert begin(store, run, of("b", 30), LONG_S) == first, "another worker that was started with the first"
    assert begin(store, run, of("b", None), LONG_S) == first, "no /proc to tell the age"
    begin_earlier(redis_url)
    assert begin(store, run, of("c", 0), LONG_S).number == 2
    assert begin(store, run, of("d", 30), LONG_S).number == 2, "a worker that was started with the second"
    begin_earlier(redis_url)
    assert begin(store, run, of("d", 0), LONG_S).number == 3
    with pytest.raises(AlreadyRunning):
        begin(store, run, dataclasses.replace(of("e", 0), launch="torchelastic job host-b 7 1000"), LONG_S)


def test_L5_a_worker_that_names_the_current_attempt_is_not_taken_for_a_younger_one(
    store: Store, run: Loop, redis_url: str
) -> None:
    """Its age may be wrong, for example because the clock of Redis jumped."""
    young = Launch(token="a", launch="torchelastic job host-a 7 1000", restart=0, age_s=0)
    first = begin(store, run, young, LONG_S)

    def again(known_epoch: int) -> JobRecord:
        return run(
            store.register_job("job", MODEL, CLUSTER, PARAMS, known_epoch=known_epoch, launch=young, silence_s=LONG_S)
        )

    other = dataclasses.replace(young, token="b")
    begin_earlier(redis_url)
    assert again(first.epoch) == first
    assert begin(store, run, other, LONG_S).number == 2


def test_L5_a_new_attempt_knows_nothing_of_the_steps_before_it(store: Store, run: Loop) -> None:
    first = begin(store, run, FIRST)
    report_all(store, run)
    publish(store, run, first, 1)
    report_all(store, run, 2)
    lease = lease_of(store, run, first, 2)
    second = begin(store, run, SECOND)
    assert run(store.list_steps(second)) == []
    assert run(store.pending_steps()) == []
    other_LE = count(routed_experts(77, 9))
    assert run(store.put_counts([sequence(IDS[0], other_LE)])) == [None]
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
    (outcome,) = run(store.put_counts([dataclasses.replace(sequence("late"), epoch=first.epoch)]))
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
