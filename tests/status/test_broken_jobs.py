"""A job that cannot be read, because something else wrote into its keys, is named; the other jobs are shown."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from fastapi.testclient import TestClient
from redis import Redis
from status.test_live import next_event, opened

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.status.live import Live
from relibra.store import Role, Store
from relibra.store.keys import JobKeys

Break = Callable[[str], AbstractContextManager[str]]


@pytest.fixture
def other(store: Store, run: Loop) -> WatchedJob:
    job = WatchedJob(store, "other", model=MODEL, cluster=CLUSTER, num_micro_batches=2)
    run(job.register())
    return job


@pytest.fixture
def broken(job: WatchedJob, other: WatchedJob, redis_url: str) -> Break:
    """Writes a list, which relibra never does, over a key of the job, and puts back what was there."""
    keys = JobKeys("job")
    current = keys.attempt(job.record.epoch)
    of_job = {"job": keys.of("job"), "pending": current.of("pending"), "plan": current.step(2, "plan")}

    @contextmanager
    def breaking(name: str) -> Iterator[str]:
        key = of_job[name]
        with Redis.from_url(redis_url) as client:
            before = client.dump(key)
            client.delete(key)
            client.rpush(key, "oops")
            yield key
            client.restore(key, 0, before, replace=True)

    return breaking


def check_set_aside(http: TestClient, key: str) -> None:
    """Check that each door names the broken job and shows the other one."""
    lines = http.get("/metrics").text.splitlines()
    assert 'relibra_job_broken{job_id="job"} 1.0' in lines
    assert 'relibra_job_broken{job_id="other"} 0.0' in lines
    assert 'relibra_job_health{job_id="other",verdict="waiting"} 1.0' in lines
    assert not [line for line in lines if line.startswith("relibra_job_health") and 'job_id="job"' in line]
    assert [glance["job_id"] for glance in http.get("/v1/jobs").json()] == ["other"]
    (found,) = http.get("/v1/broken-jobs").json()
    assert (found["job_id"], found["runbook"]) == ("job", "/runbook#relibrajobbroken")
    assert key in found["reason"]
    page = http.get("/", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert key in page.text
    assert "/jobs/other" in page.text


@pytest.mark.parametrize("name", ["job", "pending", "plan"])
def test_S9_each_door_names_a_broken_job_and_shows_it_again_once_it_is_mended(
    http: TestClient, broken: Break, name: str
) -> None:
    with broken(name) as key:
        check_set_aside(http, key)
    assert [glance["job_id"] for glance in http.get("/v1/jobs").json()] == ["job", "other"]
    assert http.get("/v1/broken-jobs").json() == []
    assert 'relibra_job_broken{job_id="job"} 0.0' in http.get("/metrics").text.splitlines()


@pytest.mark.parametrize(("name", "value"), [("job", "zz"), ("attempts", "{"), ("attempts", "{}")])
def test_S9_so_do_they_with_content_that_cannot_be_read(
    http: TestClient, job: WatchedJob, other: WatchedJob, redis_url: str, name: str, value: str
) -> None:
    key = JobKeys("job").of(name)
    with Redis.from_url(redis_url) as client:
        client.hset(key, "epoch" if name == "job" else f"{job.record.epoch:016x}", value)
    check_set_aside(http, key)


def test_S6_a_viewer_learns_nothing_of_a_broken_job_of_others(
    store: Store, run: Loop, open_app: Callable[..., TestClient], broken: Break
) -> None:
    _, token = run(store.create_token("other", Role.VIEWER))
    http = open_app(auth="required")
    http.headers["authorization"] = f"Bearer {token}"
    with broken("pending"):
        assert http.get("/v1/broken-jobs").json() == []
        assert 'job_id="job"' not in http.get("/metrics").text


def test_S9_live_updates_name_a_job_that_breaks_and_go_on(
    store: Store, run: Loop, other: WatchedJob, broken: Break
) -> None:
    async def watch() -> None:
        stream = await opened(Live(store, poll_interval_s=0.01, max_viewers=1))
        assert await next_event(stream) == ("change", {"job_ids": ["job", "other"]})
        with broken("pending"):
            assert await next_event(stream) == ("change", {"job_ids": ["job"]})
            await other.collect(1)
            assert await next_event(stream) == ("change", {"job_ids": ["other"]})
        await stream.aclose()

    run(watch())
