"""Joining an attempt: which trainer ranks belong to it, and who keeps it alive."""

from collections.abc import Iterator

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import LONG_S
from relibra.errors import AlreadyRunning, NotReady, StaleEpoch, UnknownJob
from relibra.planning.launch import Launch
from relibra.store import JobRecord, Joiner, Store

DRIVER = Launch(token="one", owner="host-a:1")
OTHER = Launch(token="two", owner="host-b:1")
TOKEN, OTHER_TOKEN = DRIVER.token_hash, OTHER.token_hash
RANKS = Joiner(group="ranks", owner="host-a:2")
OTHER_RANKS = Joiner(group="other", owner="host-b:2")
JOB = "relibra:{job}:job"


@pytest.fixture
def redis(redis_url: str) -> Iterator["Redis[str]"]:
    with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def begin(store: Store, run: Loop, launch: Launch = DRIVER, silence_s: float = 0.0) -> JobRecord:
    return run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch, silence_s=silence_s))


def join(store: Store, run: Loop, joiner: Joiner, silence_s: float = LONG_S) -> tuple[int, bool]:
    job, is_bound = run(store.join_attempt("job", joiner, silence_s=silence_s))
    return job.number, is_bound


def driver_is_heard(store: Store, run: Loop, redis: "Redis[str]", job: JobRecord) -> None:
    falls_silent(redis, seconds=1)  # else the driver and what was heard before could come in the same millisecond
    assert join(store, run, Joiner(epoch=job.epoch)) == (job.number, True)


def falls_silent(redis: "Redis[str]", *, seconds: float = 100, but: str = "") -> None:
    """Move everything that was heard into the past, except the field `but`."""
    for field in {"seen_at", "driver_seen_at", "group_seen_at", "claimed_at"} - {but}:
        if redis.hexists(JOB, field):
            redis.hincrby(JOB, field, -int(1000 * seconds))


def test_L5_ranks_with_the_token_of_the_driver_are_bound_at_once(store: Store, run: Loop) -> None:
    begin(store, run)
    for is_shared in (False, True):
        known = Joiner(token_hash=TOKEN, is_shared=is_shared, group="ranks")
        assert join(store, run, known) == (1, True)


def test_L5_ranks_without_the_token_are_bound_once_the_driver_is_heard(
    store: Store, run: Loop, redis: "Redis[str]"
) -> None:
    job = begin(store, run)
    falls_silent(redis, seconds=1)
    assert join(store, run, RANKS) == (1, False)
    assert join(store, run, RANKS) == (1, False)
    driver_is_heard(store, run, redis, job)
    assert join(store, run, RANKS) == (1, True)


def test_L5_bound_ranks_keep_the_attempt_alive_without_the_driver(store: Store, run: Loop, redis: "Redis[str]") -> None:
    job = begin(store, run)
    falls_silent(redis, seconds=1)
    join(store, run, RANKS)
    driver_is_heard(store, run, redis, job)
    falls_silent(redis)
    assert join(store, run, RANKS) == (1, True)
    with pytest.raises(AlreadyRunning, match=r"attempt 1, which host-a:1 launched .* heard 0 s ago"):
        begin(store, run, OTHER, silence_s=LONG_S)


def test_L5_a_driver_that_was_restarted_alone_hears_that_trainer_ranks_keep_the_attempt_alive(
    store: Store, run: Loop, redis: "Redis[str]"
) -> None:
    job = begin(store, run)
    join(store, run, RANKS)
    driver_is_heard(store, run, redis, job)
    join(store, run, RANKS)
    alone = Launch(token="three", owner="host-a:3")
    with pytest.raises(AlreadyRunning) as refused:
        begin(store, run, alone, silence_s=LONG_S)
    assert "trainer ranks" not in str(refused.value), "the driver is alive"
    falls_silent(redis, seconds=LONG_S + 1)
    join(store, run, RANKS)
    with pytest.raises(
        AlreadyRunning,
        match=r"heard 0 s ago by the trainer ranks of host-a:2, while its driver has been silent for \d+ s: if they "
        "belong to this launch, end them and restart driver and trainer ranks together; two launches cannot share",
    ):
        begin(store, run, alone, silence_s=LONG_S)


def test_L5_ranks_whose_attempt_was_taken_over_find_the_next_one_of_their_own_driver(store: Store, run: Loop) -> None:
    first = begin(store, run)
    begin(store, run, OTHER)
    bound = Joiner(launch=TOKEN, group="ranks", epoch=first.epoch)
    with pytest.raises(StaleEpoch):
        join(store, run, bound)
    assert begin(store, run).number == 3
    assert join(store, run, bound) == (3, True)


def test_L5_ranks_that_may_be_of_another_launch_do_not_keep_a_dead_attempt_alive(
    store: Store, run: Loop, redis: "Redis[str]"
) -> None:
    job = begin(store, run)
    falls_silent(redis, seconds=LONG_S + 1)
    assert join(store, run, OTHER_RANKS) == (1, False)
    run(store.see("job", job.epoch, is_driver=False))  # as their fetches do
    second = begin(store, run, OTHER, silence_s=LONG_S)
    assert second.number == 2
    assert join(store, run, OTHER_RANKS) == (2, False)
    driver_is_heard(store, run, redis, second)
    assert join(store, run, OTHER_RANKS) == (2, True)


def test_L5_an_attempt_is_trained_by_one_live_group(store: Store, run: Loop) -> None:
    begin(store, run)
    join(store, run, RANKS)
    for other in (OTHER_RANKS, Joiner(token_hash=TOKEN, group="other", owner="host-b:2")):
        with pytest.raises(AlreadyRunning, match=r"trained by the trainer ranks of host-a:2, in attempt 1.* 0 s ago"):
            join(store, run, other)


def test_L5_ranks_take_over_from_silent_ones_if_their_driver_lives(
    store: Store, run: Loop, redis: "Redis[str]"
) -> None:
    job = begin(store, run)
    join(store, run, RANKS)
    falls_silent(redis, seconds=LONG_S + 1)
    with pytest.raises(NotReady, match=r"belongs to the trainer ranks of host-a:2.*register it for this launch"):
        join(store, run, OTHER_RANKS)
    driver_is_heard(store, run, redis, job)
    assert join(store, run, OTHER_RANKS) == (1, False)
    with pytest.raises(AlreadyRunning, match="host-b:2"):
        join(store, run, RANKS)


def test_L5_ranks_of_an_attempt_that_is_over_do_not_join_the_next_one(store: Store, run: Loop) -> None:
    first = begin(store, run)
    begin(store, run, OTHER)
    over = r"attempt 1 of job 'job' is over: attempt 2 began at .* on host-b:1"
    for late in (
        Joiner(launch=TOKEN, group="ranks", epoch=first.epoch),
        Joiner(token_hash=TOKEN, is_shared=True, group="ranks"),
        Joiner(epoch=first.epoch),
    ):
        with pytest.raises(StaleEpoch, match=over):
            join(store, run, late)
    assert join(store, run, Joiner(token_hash=OTHER_TOKEN, group="other"))[0] == 2, "nobody took the group's place"


def test_L5_ranks_wait_for_the_driver_that_has_their_token(store: Store, run: Loop) -> None:
    begin(store, run)
    early = Joiner(token_hash=OTHER_TOKEN, is_shared=True, group="other")
    with pytest.raises(NotReady, match="no process of this launch has registered job 'job' yet"):
        join(store, run, early)
    begin(store, run, OTHER)
    assert join(store, run, early) == (2, True)


def test_L2_ranks_find_the_attempt_that_their_launch_registered_again(
    store: Store, run: Loop, redis: "Redis[str]"
) -> None:
    first = begin(store, run)
    bound = Joiner(launch=TOKEN, group="ranks", epoch=first.epoch)
    redis.flushall()
    with pytest.raises(UnknownJob):
        join(store, run, bound)
    again = begin(store, run)
    assert again.epoch > first.epoch
    assert join(store, run, bound) == (1, True)
    redis.flushall()
    begin(store, run, OTHER)
    with pytest.raises(StaleEpoch, match=r"attempt of epoch .* is over: attempt 1 began at .* on host-b:1"):
        join(store, run, bound)


def test_L5_a_clock_that_was_set_back_keeps_no_dead_ranks_alive(store: Store, run: Loop, redis: "Redis[str]") -> None:
    job = begin(store, run)
    join(store, run, RANKS)
    falls_silent(redis, seconds=-LONG_S - 1)
    known = Joiner(token_hash=job.token_hash, group="other")
    assert join(store, run, known) == (1, True)


def test_a_launch_that_began_after_the_job_was_read_is_not_taken_for_one_that_is_over(store: Store, run: Loop) -> None:
    read_before = begin(store, run)
    begin(store, run, OTHER)
    assert not run(store.has_begun(read_before, OTHER_TOKEN))
    assert run(store.has_begun(run(store.get_job("job")), OTHER_TOKEN))
    with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over"):
        run(store.has_begun(run(store.get_job("job")), TOKEN))
