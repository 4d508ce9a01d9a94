import json
import re

import pytest
import redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from relibra.errors import Conflict, Corrupt, UnknownJob
from relibra.store import Store
from relibra.store.keys import JOBS, JobKeys


def test_jobs_are_listed_as_the_status_service_shows_them(relibra, watched):
    printed = relibra("jobs", "list")
    assert re.search(r"^ *job +failing +1 +\S* *3 x 8 +2 x 2 ", printed, re.M)
    reason = "job: step 3 cannot be planned: the load is [empty]; 1 of the last 2 steps ran without a plan"
    assert f"{reason}. What to do: {watched.url}/runbook#relibrajobfailing\n" in printed
    assert [job["job_id"] for job in json.loads(relibra("jobs", "list", "--json"))] == ["job"]


def test_S9_a_broken_job_is_named_beside_the_others_and_removed(relibra, watched):
    key = JobKeys("broken").of("job")
    with redis.Redis.from_url(watched.redis_url) as client:
        client.sadd(JOBS, "broken")
        client.set(key, "oops")
        printed = relibra("jobs", "list", RELIBRA_TOKEN=watched.viewer_token)
        assert f"broken cannot be read: key {key} in Redis is no hash: " in printed
        assert f"What to do: {watched.url}/runbook#relibrajobbroken\n" in printed
        assert re.search(r"^ *job +failing ", printed, re.M)
        assert "cannot be read" not in relibra("jobs", "list"), "the token is for another job"
        with pytest.raises(Corrupt, match="is no hash"):
            relibra("jobs", "remove", "broken", "--redis-url", watched.redis_url)
        remove = relibra("jobs", "remove", "broken", "--alive", "--redis-url", watched.redis_url)
        assert remove == "removed job broken\n"
        assert not client.keys("relibra:{broken}:*")
    assert "cannot be read" not in relibra("jobs", "list", RELIBRA_TOKEN=watched.viewer_token)


def test_a_job_is_removed_from_redis(relibra, store: Store, run: Loop, redis_url: str):
    run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    assert relibra("jobs", "remove", "job", "--alive", "--redis-url", redis_url) == "removed job job\n"
    with pytest.raises(UnknownJob):
        run(store.get_job("job"))
    run(store.register_job("jobs", MODEL, CLUSTER, PARAMS))
    with pytest.raises(UnknownJob, match=r"^job 'job' is not registered: `relibra jobs list` lists"):
        relibra("jobs", "remove", "job", "--redis-url", redis_url)
    said = relibra("jobs", "remove", "jobs", "--alive", "--json", "--redis-url", redis_url)
    assert json.loads(said) == {"job_id": "jobs", "is_removed": True}


def test_a_job_that_may_be_training_is_removed_only_with_a_word(relibra, store: Store, run: Loop, redis_url: str):
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    with pytest.raises(Conflict, match=r"^job 'job' was heard \d+ s ago, .*nothing was removed.*--alive$"):
        relibra("jobs", "remove", "job", "--redis-url", redis_url)
    assert run(store.get_job("job")) == job


def test_a_job_that_was_silent_is_removed_without_a_word(relibra, store: Store, run: Loop, redis_url: str):
    run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    with redis.Redis.from_url(redis_url) as client:
        seconds, _ = client.time()
        client.hset(JobKeys("job").of("job"), "seen_at", str((seconds - 61) * 1000))
    assert relibra("jobs", "remove", "job", "--redis-url", redis_url) == "removed job job\n"


def test_a_job_goes_back_to_a_step(relibra, store: Store, run: Loop, redis_url: str):
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    printed = relibra("jobs", "rollback", "job", "7", "--redis-url", redis_url)
    assert printed == "job job went back to step 7, in attempt 2\n"
    newest = run(store.list_attempts("job"))[0]
    assert (newest.rolled_back_from, newest.rolled_back_to) == (job.epoch, 7)
    again = json.loads(relibra("jobs", "rollback", "job", "5", "--json", "--redis-url", redis_url))
    third = run(store.get_job("job"))
    assert third.epoch > newest.epoch
    assert again == {"job_id": "job", "step": 5, "attempt": 3, "epoch": f"{third.epoch:016x}"}
    with pytest.raises(UnknownJob, match="jobs list"):
        relibra("jobs", "rollback", "nobody", "7", "--redis-url", redis_url)


def test_S4_the_same_command_again_discards_nothing(relibra, store: Store, run: Loop, redis_url: str):
    run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    relibra("jobs", "rollback", "job", "7", "--redis-url", redis_url)
    second = run(store.get_job("job"))
    with pytest.raises(Conflict, match=r"job 'job' went back to step 7 already, at .* UTC, in attempt 2.*--again"):
        relibra("jobs", "rollback", "job", "7", "--redis-url", redis_url)
    assert run(store.get_job("job")) == second
    printed = relibra("jobs", "rollback", "job", "7", "--again", "--redis-url", redis_url)
    assert printed == "job job went back to step 7, in attempt 3\n"
