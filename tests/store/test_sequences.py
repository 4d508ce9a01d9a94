import dataclasses

import numpy as np
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import (
    COUNTS_SLE,
    IDS,
    LONG_S,
    PLAN,
    SCHEDULE,
    execution_report,
    lease_of,
    report_all,
    sequence,
)
from relibra.errors import Conflict, LimitExceeded, NotFound, StaleEpoch, UnknownJob
from relibra.planning import Model, Schedule
from relibra.planning.plan import Level
from relibra.store import JobRecord, SequenceCounts, Store, StoreLimits
from relibra.store.keys import JobKeys


def test_L3_counts_come_back_as_they_were_put(store: Store, run: Loop, job: JobRecord) -> None:
    assert report_all(store, run) == [None] * 8
    assert run(store.reported_sequences(job, 1)) == set(IDS)
    order = [5, 0, 7]
    counts_SLE = run(store.get_counts(job, 1, [IDS[index] for index in order]))
    np.testing.assert_array_equal(counts_SLE, COUNTS_SLE[order])
    with pytest.raises(NotFound, match="'nothing' of step 1"):
        run(store.get_counts(job, 1, [IDS[0], "nothing"]))


def test_repeated_counts_are_kept_once_and_conflicting_ones_refused(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    other = np.ascontiguousarray(COUNTS_SLE[1][:, ::-1])
    again = [
        sequence(job.epoch, IDS[0]),
        sequence(job.epoch, IDS[1], other),
        sequence(job.epoch, "new", other),
        sequence(job.epoch, "new"),
    ]
    outcomes = run(store.put_counts(again))
    assert [type(each) for each in outcomes] == [type(None), Conflict, type(None), Conflict]
    np.testing.assert_array_equal(
        run(store.get_counts(job, 1, [IDS[0], IDS[1], "new"])), [COUNTS_SLE[0], COUNTS_SLE[1], other]
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_counts_take_the_bytes_of_their_dtype_one_and_a_checksum(
    store: Store, run: Loop, job: JobRecord, redis_url: str, dtype: type[np.unsignedinteger]
) -> None:
    counts_LE = np.full((MODEL.num_layers, MODEL.num_experts), np.iinfo(dtype).max, dtype=dtype)
    assert run(store.put_counts([sequence(job.epoch, "seq", counts_LE[:, ::-1])])) == [None]
    with Redis.from_url(redis_url) as client:
        assert client.hstrlen(JobKeys("job").attempt(job.epoch).step(1, "counts"), "seq") == 1 + 4 + counts_LE.nbytes
    counts_SLE = run(store.get_counts(job, 1, ["seq"]))
    np.testing.assert_array_equal(counts_SLE, counts_LE[None])
    assert counts_SLE.dtype == dtype, "a solve would hold more bytes than were reported"
    assert run(store.put_counts([sequence(job.epoch, "short"), sequence(job.epoch, "large", counts_LE)])) == [None] * 2
    mixed_SLE = run(store.get_counts(job, 1, ["short", "large"]))
    np.testing.assert_array_equal(mixed_SLE, [sequence(job.epoch, "short").counts_LE, counts_LE])


def test_sequences_of_many_steps_and_jobs_get_their_own_answers(store: Store, run: Loop, job: JobRecord) -> None:
    lost = SequenceCounts(job_id="nobody", epoch=1, step=1, sequence_id="lost", counts_LE=COUNTS_SLE[0])
    outcomes = run(
        store.put_counts(
            [
                sequence(job.epoch, "a", step=2),
                lost,
                sequence(job.epoch, "a"),
                sequence(job.epoch, "a", COUNTS_SLE[1], step=2),
            ]
        )
    )
    assert [type(each) for each in outcomes] == [type(None), UnknownJob, type(None), Conflict]


def test_late_sequences_are_refused_but_known_ones_confirmed(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    known, late = run(store.put_counts([sequence(job.epoch, IDS[0]), sequence(job.epoch, "late")]))
    assert known is None
    assert isinstance(late, Conflict)
    assert "is late: step 1 has its schedule" in str(late)
    assert run(store.reported_sequences(job, 1)) == set(IDS)


def test_a_step_that_is_planned_from_history_takes_sequences_and_a_schedule(
    store: Store, run: Loop, job: JobRecord
) -> None:
    for rank in range(job.cluster.num_ranks):
        run(store.put_report(job, execution_report(rank, step=0)))
    assert run(store.get_step(job, 1)).level is Level.HISTORY
    lease = run(store.take_lease("job", LONG_S))
    run(store.publish_plan(lease, dataclasses.replace(PLAN, level=Level.HISTORY)))
    assert report_all(store, run) == [None] * 8
    run(store.put_schedule(job, 1, IDS, SCHEDULE))
    assert run(store.get_step(job, 1)).plan is None, "its plan knew less"
    (late,) = run(store.put_counts([sequence(job.epoch, "late")]))
    assert isinstance(late, Conflict)


def test_a_step_claims_what_was_reported_without_a_step(store: Store, run: Loop, job: JobRecord) -> None:
    older, newer = COUNTS_SLE[0], COUNTS_SLE[1]
    early = [sequence(job.epoch, "a", older, step=None), sequence(job.epoch, "b", step=None)]
    again = [sequence(job.epoch, "a", newer, step=None)]
    assert run(store.put_counts(early)) == [None, None]
    assert run(store.put_counts(again)) == [None]
    assert run(store.claim(job, 1, ["a", "lost"])) == ["lost"]
    np.testing.assert_array_equal(run(store.get_counts(job, 1, ["a"])), [newer])
    assert run(store.reported_sequences(job, 1)) == {"a"}, "nobody named the other one"
    run(store.put_counts(early))
    assert run(store.claim(job, 1, ["a"])) == []
    np.testing.assert_array_equal(run(store.get_counts(job, 1, ["a"])), [newer], "a step keeps what it has")
    assert run(store.claim(job, 2, ["a", "b"])) == []
    np.testing.assert_array_equal(run(store.get_counts(job, 2, ["a"])), [older])
    run(store.put_schedule(job, 2, ["a"], Schedule.round_robin(1, 1, CLUSTER)))
    run(store.put_counts([sequence(job.epoch, "c", step=None)]))
    assert run(store.claim(job, 2, ["c"])) == ["c"], "the step has its schedule, which whoever reports it will hear"


def test_S7_the_oldest_sequences_without_a_step_make_room(store: Store, run: Loop, job: JobRecord) -> None:
    few = StoreLimits(max_sequences=2)
    for name in "abc":
        assert run(store.put_counts([sequence(job.epoch, name, step=None)], few)) == [None]
    assert run(store.claim(job, 1, ["a", "b", "c"])) == ["a"]
    one = StoreLimits(max_step_size_bytes=150)
    run(store.put_counts([sequence(job.epoch, "d", step=None)], one))
    assert run(store.claim(job, 2, ["b", "c", "d"])) == ["b", "c"]
    tiny = StoreLimits(max_step_size_bytes=8)
    (refused,) = run(store.put_counts([sequence(job.epoch, "e", step=None)], tiny))
    assert isinstance(refused, LimitExceeded)
    assert "what is reported without a step may take 8 bytes" in str(refused)


def test_S4_what_an_earlier_attempt_left_without_a_step_is_gone(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.put_counts([sequence(job.epoch, "a", step=None)]))
    anew = run(store.rollback("job", job.epoch, 0))
    assert run(store.claim(anew, 1, ["a"])) == ["a"]
    (stale,) = run(store.put_counts([sequence(job.epoch, "a", step=None)]))
    assert isinstance(stale, StaleEpoch)
    run(store.put_counts([sequence(anew.epoch, "b", step=None)]))
    assert run(store.claim(anew, 1, ["a", "b"])) == ["a"]
    run(store.remove_job("job"))
    (unknown,) = run(store.put_counts([sequence(anew.epoch, "b", step=None)]))
    assert isinstance(unknown, UnknownJob)


def accounted_bytes(redis_url: str, job: JobRecord, step: int = 1) -> int:
    """Return what counts as the size of a step."""
    with Redis.from_url(redis_url) as client:
        return int(client.hget(JobKeys("job").attempt(job.epoch).of("sizes"), str(step)) or 0)


def test_S7_a_step_holds_no_more_than_its_limit(store: Store, run: Loop, job: JobRecord, redis_url: str) -> None:
    run(store.put_counts([sequence(job.epoch, IDS[0], step=9)]))
    size_bytes = accounted_bytes(redis_url, job, step=9)
    assert size_bytes > len(IDS[0]) + COUNTS_SLE[0].size
    limits = StoreLimits(max_step_size_bytes=3 * size_bytes + 1)
    outcomes = report_all(store, run, limits=limits)
    assert [type(each) for each in outcomes] == [type(None)] * 3 + [LimitExceeded] * 5
    assert f"{3 * size_bytes + 1} bytes" in str(outcomes[3])
    again = report_all(store, run, limits=limits)
    assert [type(each) for each in again] == [type(None)] * 3 + [LimitExceeded] * 5


@pytest.mark.parametrize("id_length", [12, 250])
def test_S7_names_and_tables_of_redis_count_too(store: Store, run: Loop, redis_url: str, id_length: int) -> None:
    tiny = Model(num_layers=1, num_experts=2, top_k=1)
    job = run(store.register_job("job", tiny, CLUSTER, PARAMS))
    counts_LE = np.ones((1, 2), dtype=np.uint8)
    ids = [f"{number:0{id_length}}" for number in range(3000)]
    assert not any(
        run(store.put_counts([sequence(job.epoch, each, counts_LE, policies=f"{each[:9]}-1") for each in ids]))
    )
    keys = JobKeys("job").attempt(job.epoch)
    with Redis.from_url(redis_url) as client:
        names = [keys.step(1, name) for name in ("counts", "policies")]
        real_bytes = sum(client.memory_usage(name, samples=0) or 0 for name in names)
    assert 0.8 * real_bytes <= accounted_bytes(redis_url, job) <= 1.5 * real_bytes


def test_S7_a_job_has_no_more_open_steps_than_its_limit(store: Store, run: Loop, job: JobRecord) -> None:
    limits = StoreLimits(max_open_steps=2)
    assert report_all(store, run, 4, limits) == [None] * 8
    assert report_all(store, run, 5, limits) == [None] * 8
    (refused, *_) = report_all(store, run, 6, limits)
    assert isinstance(refused, LimitExceeded)
    assert "2 steps of job 'job' have sequences and no plan" in str(refused)
    assert report_all(store, run, 5, limits) == [None] * 8
    # A plan closes its step and all earlier steps that were never scheduled.
    run(store.publish_plan(lease_of(store, run, job, 5), PLAN))
    assert report_all(store, run, 6, limits) == [None] * 8
    assert report_all(store, run, 7, limits) == [None] * 8


def test_policy_versions_are_counted_once_a_sequence(store: Store, run: Loop, job: JobRecord) -> None:
    for _ in range(2):
        run(
            store.put_counts(
                [
                    sequence(job.epoch, "a", policies="4-5"),
                    sequence(job.epoch, "b", policies="5-5"),
                    sequence(job.epoch, "c", policies="5-5"),
                    sequence(job.epoch, "d"),
                ]
            )
        )
    assert run(store.get_step(job, 1)).policies == {"4-5": 1, "5-5": 2}
