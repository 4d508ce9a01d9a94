from typing import Any

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, SCHEDULE, publish, report_all, sequence
from relibra.errors import Conflict, StaleEpoch, UnknownJob
from relibra.planning import Cluster, PlanParams
from relibra.planning.launch import Launch
from relibra.store import JobRecord, Store
from relibra.store.keys import SCHEMA


def test_S3_a_job_keeps_its_epoch_and_refuses_other_content(store: Store, run: Loop, job: JobRecord) -> None:
    assert 0 < job.epoch < 2**53
    assert run(store.register_job("job", MODEL, CLUSTER, PARAMS)) == job
    with pytest.raises(Conflict, match="another params"):
        run(store.register_job("job", MODEL, CLUSTER, PlanParams(seed=4)))
    assert run(store.get_job("job")) == job


def test_S4_a_job_made_anew_has_a_larger_epoch(store: Store, run: Loop, job: JobRecord) -> None:
    run(store._redis.flushall())
    anew = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    assert anew.epoch > job.epoch


def test_S4_epochs_rise_by_counting_when_the_clock_of_redis_is_behind(store: Store, run: Loop, job: JobRecord) -> None:
    ahead = job.epoch + 10**15
    run(store._redis.set("relibra:{job}:epoch", ahead))
    run(store.remove_job("job"))
    assert run(store.register_job("job", MODEL, CLUSTER, PARAMS)).epoch == ahead + 1


def test_S4_after_a_wiped_redis_epochs_go_on_above_what_the_caller_knows(
    store: Store, run: Loop, job: JobRecord
) -> None:
    known = job.epoch + 10**15
    run(store._redis.flushall())
    assert run(store.register_job("job", MODEL, CLUSTER, PARAMS, known_epoch=known)).epoch == known + 1


def test_S4_a_launch_that_knows_a_later_epoch_begins_an_attempt_above_it(store: Store, run: Loop) -> None:
    launch = Launch(token="one", process="driver")
    first = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch))
    # A failover of Redis lost the attempt that this launch was told of.
    lost = first.epoch + 10**15
    second = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch, known_epoch=lost))
    assert (second.number, second.epoch) == (2, lost + 1)
    for known in (lost, first.epoch, 0):
        assert run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=launch, known_epoch=known)) == second
    other = Launch(token="two")
    assert run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=other, known_epoch=lost + 7)).epoch == lost + 8


def test_jobs_are_listed_and_unknown_ones_refused(store: Store, run: Loop, job: JobRecord) -> None:
    other = run(store.register_job("another", MODEL, Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=0), PARAMS))
    assert run(store.job_ids()) == ["another", "job"]
    assert run(store.get_jobs(["another", "job", "nobody"])) == {"another": other, "job": job}
    with pytest.raises(UnknownJob, match="'nobody' is not registered"):
        run(store.get_job("nobody"))


def test_S4_a_removed_job_leaves_only_its_counters_behind(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    report_all(store, run)
    publish(store, run, job, 1)
    report_all(store, run, 2)
    run(store.remove_job("job"))
    with Redis.from_url(redis_url) as client:
        assert set(client.keys("*")) - {SCHEMA.encode()} == {b"relibra:{job}:epoch", b"relibra:{job}:fence"}
    with pytest.raises(StaleEpoch):
        run(store.put_schedule(job, 3, IDS, SCHEDULE))
    assert [type(each) for each in report_all(store, run)] == [UnknownJob] * 8


@pytest.mark.parametrize("paused_before", ["zrange", "evalsha", "srem", "exists"])
def test_S4_a_removal_that_is_overtaken_leaves_the_next_incarnation_alone(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch, paused_before: str
) -> None:
    report_all(store, run)
    execute, anew = store._redis.execute_command, []

    async def overtaken(name: str, *args: Any, **options: Any) -> Any:
        if name.lower() == paused_before:
            monkeypatch.undo()
            if paused_before in ("zrange", "evalsha"):
                await store.remove_job("job")
            anew.append(await store.register_job("job", MODEL, CLUSTER, PARAMS))
            assert await store.put_counts([sequence(anew[0].epoch, "seq")]) == [None]
        return await execute(name, *args, **options)

    monkeypatch.setattr(store._redis, "execute_command", overtaken)
    run(store.remove_job("job"))
    assert run(store.job_ids()) == ["job"]
    assert run(store.get_job("job")) == anew[-1]
    assert run(store.reported_sequences(anew[-1], 1)) == {"seq"}


def test_S7_a_removal_takes_along_the_steps_that_come_meanwhile(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    report_all(store, run)
    execute = store._redis.execute_command

    async def overtaken(name: str, *args: Any, **options: Any) -> Any:
        if name.lower() == "evalsha":
            monkeypatch.undo()
            assert await store.put_counts([sequence(job.epoch, "seq", step=2)]) == [None]
        return await execute(name, *args, **options)

    monkeypatch.setattr(store._redis, "execute_command", overtaken)
    run(store.remove_job("job"))
    with Redis.from_url(redis_url) as client:
        assert set(client.keys("*")) - {SCHEMA.encode()} == {b"relibra:{job}:epoch"}
