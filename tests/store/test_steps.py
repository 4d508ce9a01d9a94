from redis import Redis
from services_harness import Loop
from step_samples import IDS, SCHEDULE, publish, report_all

from relibra.errors import Conflict
from relibra.store import JobRecord, StepState, Store


def test_steps_are_listed_newest_first(store: Store, run: Loop, job: JobRecord) -> None:
    for step in (3, 10, 4):
        report_all(store, run, step)
    assert [(each.step, each.num_sequences) for each in run(store.list_steps("job", limit=2))] == [(10, 8), (4, 8)]
    assert run(store.list_steps("nobody")) == []


def test_S7_only_the_newest_steps_are_kept_and_those_that_wait(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    for step in range(1, 6):
        report_all(store, run, step)
        if step == 2:
            run(store.put_schedule(job, step, IDS, SCHEDULE))
    run(store.expire_steps("job", 2))
    assert [each.step for each in run(store.list_steps("job"))] == [5, 4, 2]
    with Redis.from_url(redis_url) as client:
        kept = {key.decode().split(":")[3] for key in client.keys("relibra:{job}:step:*")}
        assert kept == {"2", "4", "5"}
        assert set(client.hkeys("relibra:{job}:sizes")) == {b"2", b"4", b"5"}
    outcomes = report_all(store, run, 1)
    assert [type(each) for each in outcomes] == [Conflict] * 8
    assert "step 1 of job 'job' has expired" in str(outcomes[0])


def test_S7_redis_does_not_grow_with_the_number_of_steps(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    sizes = []
    with Redis.from_url(redis_url) as client:
        for step in range(1, 13):
            report_all(store, run, step)
            publish(store, run, job, step)
            run(store.expire_steps("job", 3))
            sizes.append(client.dbsize())
    assert len(set(sizes[3:])) == 1
    assert {each.state for each in run(store.list_steps("job"))} == {StepState.PLANNED}
    assert [each.step for each in run(store.plans_after("job", 0))] == [10, 11, 12]
    assert run(store.num_planned_steps("job")) == 12
