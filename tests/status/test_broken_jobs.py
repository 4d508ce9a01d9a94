"""A job that cannot be read, because something else wrote into its keys, is named; the other jobs are shown."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from redis import Redis
from status.test_live import next_event, opened

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.status.live import Live
from relibra.store import Role, Store
from relibra.store.keys import ATTEMPT_KEYS, JOB_KEYS, STEP_KEYS, JobKeys

_READ_OF_STEPS = ("counts", "policies", "schedule", "plan", "failure", "reports", "executed")
"""The keys of a step that the overview reads."""
Break = Callable[..., str]


@pytest.fixture
def other(store: Store, run: Loop) -> WatchedJob:
    job = WatchedJob(store, "other", model=MODEL, cluster=CLUSTER, num_micro_batches=2)
    run(job.register())
    return job


@pytest.fixture
def break_key(job: WatchedJob, other: WatchedJob, redis_url: str) -> Break:
    """Writes a value of another type over a key of the job; returns the key."""
    keys = JobKeys("job")
    current = keys.attempt(job.record.epoch)

    def break_it(name: str, step: int | None = None) -> str:
        key = current.step(step, name) if step is not None else keys.of(name) if name in JOB_KEYS else current.of(name)
        kind = {**JOB_KEYS, **ATTEMPT_KEYS, **STEP_KEYS}[name]
        with Redis.from_url(redis_url) as client:
            client.delete(key)
            client.rpush(key, "oops") if kind != "list" else client.set(key, "oops")
        return key

    return break_it


def check_set_aside(http: TestClient, key: str) -> None:
    """Check that each door names the broken job and shows the other one."""
    lines = http.get("/metrics").text.splitlines()
    assert 'relibra_job_broken{job_id="job"} 1.0' in lines
    assert 'relibra_job_broken{job_id="other"} 0.0' in lines
    assert 'relibra_job_health{job_id="other",verdict="waiting"} 1.0' in lines
    assert not [line for line in lines if line.startswith("relibra_job_health") and 'job_id="job"' in line]
    assert [glance["job_id"] for glance in http.get("/v1/jobs").json()] == ["other"]
    (broken,) = http.get("/v1/broken-jobs").json()
    assert (broken["job_id"], broken["runbook"]) == ("job", "/runbook#relibrajobbroken")
    assert key in broken["reason"]
    page = http.get("/", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert key in page.text
    assert "/jobs/other" in page.text


@pytest.mark.parametrize("name", [*JOB_KEYS, *ATTEMPT_KEYS])
def test_S9_a_key_of_a_wrong_type_breaks_its_job_by_name_and_no_other(
    http: TestClient, break_key: Break, name: str
) -> None:
    check_set_aside(http, break_key(name))


@pytest.mark.parametrize("name", _READ_OF_STEPS)
def test_S9_so_does_a_key_of_a_step(http: TestClient, break_key: Break, name: str) -> None:
    check_set_aside(http, break_key(name, step=2))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("job", "epoch", "zz"), ("attempts", None, "{"), ("attempts", None, "{}")],
)
def test_S9_so_does_content_that_cannot_be_read(
    http: TestClient, job: WatchedJob, other: WatchedJob, redis_url: str, name: str, field: str | None, value: str
) -> None:
    key = JobKeys("job").of(name)
    with Redis.from_url(redis_url) as client:
        client.hset(key, field or f"{job.record.epoch:016x}", value)
    check_set_aside(http, key)


def test_S9_so_does_a_pending_step_without_a_number(
    http: TestClient, job: WatchedJob, other: WatchedJob, redis_url: str
) -> None:
    pending = JobKeys("job").attempt(job.record.epoch).of("pending")
    with Redis.from_url(redis_url) as client:
        client.zadd(pending, {"one": 1.0})
    check_set_aside(http, pending)


def test_S9_a_job_whose_key_is_mended_is_shown_again(
    http: TestClient, job: WatchedJob, other: WatchedJob, redis_url: str, break_key: Break
) -> None:
    break_key("packing")
    assert [glance["job_id"] for glance in http.get("/v1/jobs").json()] == ["other"]
    with Redis.from_url(redis_url) as client:
        client.delete(JobKeys("job").attempt(job.record.epoch).of("packing"))
    assert [glance["job_id"] for glance in http.get("/v1/jobs").json()] == ["job", "other"]
    assert http.get("/v1/broken-jobs").json() == []
    assert 'relibra_job_broken{job_id="job"} 0.0' in http.get("/metrics").text.splitlines()


def test_S6_a_viewer_learns_nothing_of_a_broken_job_of_others(
    store: Store, run: Loop, open_app: Callable[..., TestClient], break_key: Break
) -> None:
    break_key("pending")
    _, token = run(store.create_token("other", Role.VIEWER))
    http = open_app(auth="required")
    http.headers["authorization"] = f"Bearer {token}"
    assert http.get("/v1/broken-jobs").json() == []
    assert 'job_id="job"' not in http.get("/metrics").text


def test_S9_live_updates_name_a_job_that_breaks_and_go_on(
    store: Store, run: Loop, other: WatchedJob, break_key: Break
) -> None:
    async def watch() -> None:
        stream = await opened(Live(store, poll_interval_s=0.01, max_viewers=1))
        assert await next_event(stream) == ("change", {"job_ids": ["job", "other"]})
        break_key("steps")
        assert await next_event(stream) == ("change", {"job_ids": ["job"]})
        await other.collect(1)
        assert await next_event(stream) == ("change", {"job_ids": ["other"]})
        await stream.aclose()

    run(watch())
