import dataclasses
from typing import Any

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, PLAN, SCHEDULE, lease_of, publish, report_all, sequence
from relibra.errors import Conflict, NotFound
from relibra.store import JobRecord, StepState, Store
from relibra.store.keys import JobKeys


def test_steps_are_listed_newest_first(store: Store, run: Loop, job: JobRecord) -> None:
    for step in (3, 10, 4):
        report_all(store, run, step)
    assert [(each.step, each.num_sequences) for each in run(store.list_steps(job, limit=2))] == [(10, 8), (4, 8)]
    assert run(store.list_steps(dataclasses.replace(job, job_id="nobody"))) == []


def test_S7_only_the_newest_steps_are_kept_and_those_that_wait(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    for step in range(1, 6):
        report_all(store, run, step)
        if step == 2:
            run(store.put_schedule(job, step, IDS, SCHEDULE))
    run(store.expire_steps(job, 2))
    assert [each.step for each in run(store.list_steps(job))] == [5, 4, 2]
    with Redis.from_url(redis_url) as client:
        kept = {key.decode().split(":")[4] for key in client.keys("relibra:{job}:*:step:*")}
        assert kept == {"2", "4", "5"}
        assert set(client.hkeys(JobKeys("job").attempt(job.epoch).of("sizes"))) == {b"2", b"4", b"5"}
    outcomes = report_all(store, run, 1)
    assert [type(each) for each in outcomes] == [Conflict] * 8
    assert "step 1 of job 'job' has expired" in str(outcomes[0])


def test_S9_a_step_that_is_not_there_is_expired_or_was_never_reported(store: Store, run: Loop, job: JobRecord) -> None:
    with pytest.raises(NotFound, match="job 'job' has no step 3: nothing has been reported yet"):
        run(store.find_step(job, 3))
    for step in range(1, 6):
        report_all(store, run, step)
    assert run(store.find_step(job, 3)) == run(store.get_step(job, 3))
    run(store.expire_steps(job, 2))
    with pytest.raises(NotFound, match="step 3 of job 'job' has expired: steps 4 to 5 are kept"):
        run(store.find_step(job, 3))
    with pytest.raises(NotFound, match="job 'job' has no step 9: steps 4 to 5 are kept"):
        run(store.find_step(job, 9))


def test_S7_redis_does_not_grow_with_the_number_of_steps(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    sizes = []
    with Redis.from_url(redis_url) as client:
        for step in range(1, 13):
            report_all(store, run, step)
            publish(store, run, job, step)
            run(store.expire_steps(job, 3))
            sizes.append(client.dbsize())
    assert len(set(sizes[3:])) == 1
    assert {each.state for each in run(store.list_steps(job))} == {StepState.PLANNED}
    assert [each.step for each in run(store.plans_after(job, 0))] == [10, 11, 12]
    assert run(store.num_planned_steps(job)) == 12


def test_S4_an_expiry_that_outlasts_its_job_leaves_the_next_one_alone(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(1, 5):
        report_all(store, run, step)
    script, anew = store._script, []

    async def paused(name: str, keys: list[str], args: list[Any]) -> Any:
        if name == "expire_steps":
            monkeypatch.undo()
            await store.remove_job("job")
            anew.append(await store.register_job("job", MODEL, CLUSTER, PARAMS))
            assert await store.put_counts([sequence("seq", step=1)]) == [None]
        return await script(name, keys, args)

    monkeypatch.setattr(store, "_script", paused)
    run(store.expire_steps(job, 2))
    assert run(store.reported_sequences(anew[0], 1)) == {"seq"}
    assert [each.step for each in run(store.list_steps(anew[0]))] == [1]


def test_S7_what_has_expired_stays_so_when_an_older_step_expires_after_it(
    store: Store, run: Loop, job: JobRecord
) -> None:
    lease = lease_of(store, run, job, 1)
    for step in range(2, 6):
        report_all(store, run, step)
    run(store.expire_steps(job, 2))
    run(store.publish_plan(lease, PLAN))
    run(store.expire_steps(job, 2))
    assert [type(each) for each in report_all(store, run, 3)] == [Conflict] * 8
