import dataclasses
import time
from typing import Any

import pytest
from redis import Redis

from harness.services import Loop
from harness.step_samples import IDS, SCHEDULE, expire, lease_of, publish, report_all
from relibra.errors import Corrupt, NotFound
from relibra.store import ExpiryCause, JobRecord, StepState, Store
from relibra.store.keys import AttemptKeys


def test_steps_are_listed_newest_first(store: Store, run: Loop, job: JobRecord) -> None:
    for step in (3, 10, 4):
        report_all(store, run, step)
    assert [(each.step, each.num_sequences) for each in run(store.list_steps(job, limit=2))] == [(10, 8), (4, 8)]
    assert run(store.list_steps(dataclasses.replace(job, job_id="nobody"))) == []


def test_the_step_that_a_planner_works_on_is_being_solved_and_later_ones_wait(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    report_all(store, run, 2)
    lease_of(store, run, job, 1)
    run(store.put_schedule(job, 2, IDS, SCHEDULE))
    assert [step.state for step in run(store.list_steps(job))] == [StepState.QUEUED, StepState.SOLVING]
    with Redis.from_url(redis_url) as redis:
        redis.zadd(AttemptKeys.of_attempt(job).of("pending"), {"no number": 0})
    with pytest.raises(Corrupt, match="pending"):
        run(store.get_step(job, 1))


def test_S9_a_step_that_is_not_there_is_expired_or_was_never_reported(store: Store, run: Loop, job: JobRecord) -> None:
    with pytest.raises(NotFound, match="job 'job' has no step 3: nothing has been reported yet"):
        run(store.find_step(job, 3))
    for step in range(1, 6):
        report_all(store, run, step)
    assert run(store.find_step(job, 3)) == run(store.get_step(job, 3))
    assert expire(store, run, job, [1, 2, 3]) == [1, 2, 3]
    expected = "step 3 of job 'job' has expired: only the summary .* remains; steps 4 to 5 are kept in full, 2 in all"
    with pytest.raises(NotFound, match=expected):
        run(store.find_step(job, 3))
    with pytest.raises(NotFound, match="step 0 of job 'job' has expired: steps 4 to 5 are kept"):
        run(store.find_step(job, 0))
    with pytest.raises(NotFound, match="job 'job' has no step 9: steps 4 to 5 are kept"):
        run(store.find_step(job, 9))


def test_S9_a_step_that_expires_while_steps_are_listed_is_not_listed_without_its_plan(
    store: Store, run: Loop, job: JobRecord, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        publish(store, run, job, step)
    read = store._states

    async def read_later(*args: Any) -> Any:
        async with Store.open(redis_url) as other:
            measured, _ = await other.measure_steps(job)
            assert await other.expire_steps(job, {measured[0]: ExpiryCause.STEPS}, time.time()) == [1]
        return await read(*args)

    monkeypatch.setattr(store, "_states", read_later)
    assert [(each.step, each.state) for each in run(store.list_steps(job))] == [(2, StepState.PLANNED)]


def test_the_span_of_an_attempt_covers_its_expired_steps(store: Store, run: Loop, job: JobRecord) -> None:
    assert run(store.kept_steps([job])) == [None]
    for step in (3, 4, 5):
        report_all(store, run, step)
    assert run(store.kept_steps([job, job])) == [(3, 5)] * 2
    assert expire(store, run, job, [3, 4]) == [3, 4]
    assert run(store.kept_steps([job])) == [(3, 5)]
