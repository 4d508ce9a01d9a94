"""Keys that something else than relibra overwrote are named, and break their own job alone."""

import pytest
from redis import Redis
from store.test_bounded_cluster import cluster, node  # noqa: F401

from harness.redis_deployments import Node
from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, SCHEDULE, publish, report_all
from relibra.errors import Corrupt, UnknownJob
from relibra.store import JobRecord, Store
from relibra.store.keys import ATTEMPT_KEYS, JOB_KEYS, JOBS, SCHEMA, TOKENS, JobKeys

OTHER_KIND = "none of our types"


def break_key(redis_url: str, key: str) -> str:
    """Write a list, which relibra never does, over a key; return the key."""
    with Redis.from_url(redis_url) as client:
        client.delete(key)
        client.rpush(key, OTHER_KIND)
    return key


def keys_of(job: JobRecord, name: str) -> str:
    keys = JobKeys(job.job_id)
    return keys.of(name) if name in JOB_KEYS else keys.attempt(job.epoch).of(name)


@pytest.fixture
def other(store: Store, run: Loop) -> JobRecord:
    """A job with a pending step, behind the job in the order of ids."""
    other = run(store.register_job("other", MODEL, CLUSTER, PARAMS))
    run(store.put_schedule(other, 1, IDS, SCHEDULE))
    return other


@pytest.mark.parametrize("name", ["job", "pending"])
def test_S6_pending_steps_of_other_jobs_are_found_beside_a_broken_job(
    store: Store, run: Loop, job: JobRecord, other: JobRecord, redis_url: str, name: str
) -> None:
    key = break_key(redis_url, keys_of(job, name))
    (step,), broken = run(store.pending_steps())
    assert (step.job_id, step.step) == ("other", 1)
    assert list(broken) == ["job"]
    assert f"key {key} in Redis is no " in str(broken["job"])


def test_S6_content_of_a_job_that_cannot_be_read_breaks_no_other(
    store: Store, run: Loop, job: JobRecord, other: JobRecord, redis_url: str
) -> None:
    pending, registration = keys_of(job, "pending"), keys_of(job, "job")
    with Redis.from_url(redis_url) as client:
        client.zadd(pending, {"one": 1.0})
        (step,), broken = run(store.pending_steps())
        assert step.job_id == "other"
        assert f"key {pending} was changed in Redis since it was stored: ValueError" in str(broken["job"])
        with pytest.raises(Corrupt, match=pending.replace("{", r"\{")):
            run(store.take_lease("job", 60.0))
        client.hset(registration, "epoch", "none")
        assert registration in str(run(store.pending_steps())[1]["job"])
        with pytest.raises(Corrupt, match=r"key .*:job was changed"):
            run(store.get_job("job"))


@pytest.mark.parametrize("name", [*JOB_KEYS, *ATTEMPT_KEYS])
def test_S9_each_key_of_another_type_is_named(
    store: Store, run: Loop, job: JobRecord, redis_url: str, name: str
) -> None:
    run(store.check_keys("job"))
    key = break_key(redis_url, keys_of(job, name))
    kind = {**JOB_KEYS, **ATTEMPT_KEYS}[name]
    with pytest.raises(Corrupt) as caught:
        run(store.check_keys("job"))
    assert str(caught.value).startswith(f"key {key} in Redis is no {kind}: ")


def test_S9_sound_keys_pass_the_check(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    publish(store, run, job, 1)
    run(store.check_keys("job"))
    run(store.check_keys("nobody"))


def test_S9_a_write_that_meets_a_key_of_another_type_names_it(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    key = break_key(redis_url, JobKeys("job").attempt(job.epoch).step(1, "schedule"))
    with pytest.raises(Corrupt) as caught:
        run(store.put_schedule(job, 1, IDS, SCHEDULE))
    assert f"key {key} in Redis is no hash" in str(caught.value)


@pytest.mark.parametrize("key", [JOBS, TOKENS])
def test_S9_a_redis_whose_lists_are_damaged_is_not_fit(store: Store, run: Loop, redis_url: str, key: str) -> None:
    run(store.check())
    break_key(redis_url, key)
    with pytest.raises(Corrupt, match=f"key {key} in Redis is no "):
        run(store.check_again())


@pytest.mark.parametrize("name", ["job", "attempts", "epoch", "fence", "lease", "ahead", "steps", "pending", "version"])
def test_a_broken_job_is_removed_with_all_its_keys(
    store: Store, run: Loop, job: JobRecord, other: JobRecord, redis_url: str, name: str
) -> None:
    report_all(store, run)
    publish(store, run, job, 1)
    break_key(redis_url, keys_of(job, name))
    run(store.remove_job("job"))
    with Redis.from_url(redis_url) as client:
        left = {key.decode() for key in client.keys("*") if b"{other}" not in key}
    counters = {keys_of(job, each) for each in ("epoch", "fence") if each != name}
    assert left == {SCHEMA, JOBS, *counters}
    assert run(store.job_ids()) == ["other"]
    assert run(store.get_job("other")) == other
    with pytest.raises(UnknownJob):
        run(store.remove_job("job"))
    assert run(store.register_job("job", MODEL, CLUSTER, PARAMS)).epoch > job.epoch


@pytest.mark.parametrize(("name", "field"), [("job", "epoch"), ("job", "shape"), ("attempts", "")])
def test_a_job_whose_registration_cannot_be_read_is_removed(
    store: Store, run: Loop, job: JobRecord, redis_url: str, name: str, field: str
) -> None:
    with Redis.from_url(redis_url) as client:
        client.hset(keys_of(job, name), field or f"{job.epoch:016x}", "none")
        run(store.remove_job("job"))
        assert run(store.job_ids()) == []
        assert set(client.keys("relibra:{job}:*")) <= {keys_of(job, each).encode() for each in ("epoch", "fence")}


def test_S6_a_broken_job_is_set_aside_and_removed_on_a_cluster_too(node: Node, run: Loop) -> None:  # noqa: F811
    async def check(redis: Redis) -> None:
        async with Store.open(f"redis+cluster://127.0.0.1:{node.port}") as store:
            for job_id in ("job", "other"):
                job = await store.register_job(job_id, MODEL, CLUSTER, PARAMS)
                await store.put_schedule(job, 1, IDS, SCHEDULE)
            key = keys_of(await store.get_job("job"), "pending")
            redis.delete(key)
            redis.rpush(key, OTHER_KIND)
            (step,), broken = await store.pending_steps()
            assert (step.job_id, list(broken)) == ("other", ["job"])
            assert f"key {key} in Redis is no zset" in str(broken["job"])
            await store.remove_job("job")
            assert await store.job_ids() == ["other"]
            assert {name for name in redis.keys("*") if b"{job}" in name} == {JobKeys("job").of("epoch").encode()}

    with node.client() as redis:
        run(check(redis))
