"""The Prometheus metrics of jobs, and the ports that serve them."""

import logging
import re
import socket
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from fastapi.testclient import TestClient
from redis import Redis

from harness.services import Loop, Service
from harness.watched_job import WatchedJob
from relibra import service_log
from relibra.errors import Unavailable
from relibra.planning.launch import Launch
from relibra.status import metrics
from relibra.status.app import create_metrics_app
from relibra.status.serve import StatusServer
from relibra.status.settings import StatusSettings
from relibra.store import PackingState, Store
from relibra.store.keys import JobKeys
from relibra.store.tokens import Role


def test_metrics_tell_of_every_job(http: TestClient, job: WatchedJob) -> None:
    lines = http.get("/metrics").text.splitlines()
    assert "relibra_jobs 1.0" in lines
    assert 'relibra_job_health{job_id="job",verdict="failing"} 1.0' in lines
    assert 'relibra_job_health{job_id="job",verdict="well"} 0.0' in lines
    plan = http.get("/v1/jobs/job/steps/2").json()["plan"]
    assert f'relibra_plan_latency_seconds{{job_id="job"}} {plan["latency_s"]}' in lines
    assert 'relibra_steps_planned_total{job_id="job"} 2.0' in lines
    assert 'relibra_steps_pending{job_id="job"} 1.0' in lines
    after = job.plans[2].prediction.imbalance_after
    assert f'relibra_plan_imbalance_ratio{{job_id="job",when="after"}} {after}' in lines
    assert 'relibra_executed_step{job_id="job"} 2.0' in lines
    assert 'relibra_not_balancing{job_id="job",obstacle="fell_back"} 1.0' in lines
    assert 'relibra_not_balancing{job_id="job",obstacle="refused_schedule"} 0.0' in lines
    assert 'relibra_not_balancing_since_step{job_id="job"} 2.0' in lines
    assert 'relibra_steps_without_plan{job_id="job"} 1.0' in lines
    assert 'relibra_steps_executed_recently{job_id="job"} 2.0' in lines
    assert 'relibra_memory_forecasts_recently{job_id="job"} 0.0' in lines
    assert 'relibra_fallback_ranks{cause="late",job_id="job",phase="update"} 4.0' in lines
    assert 'relibra_fallback_ranks{cause="stale",job_id="job",phase="update"} 0.0' in lines
    assert 'relibra_missing_reports{job_id="job",phase="update"} 0.0' in lines
    assert 'relibra_transfer_seconds{job_id="job",kind="reorder",phase="update"} 0.2' in lines
    assert 'relibra_transfer_seconds{job_id="job",kind="replica",phase="update"} 0.003' in lines


def test_a_restart_is_a_change_of_a_metric(http: TestClient, job: WatchedJob, store: Store, run: Loop) -> None:
    def value(name: str) -> float:
        (line,) = (each for each in http.get("/metrics").text.splitlines() if each.startswith(f"{name}{{"))
        return float(line.rpartition(" ")[2])

    assert value("relibra_job_attempt") == 1
    run(job.restart(Launch(token="two")))
    newest, _ = run(store.list_attempts("job"))
    assert value("relibra_job_attempt") == 2
    assert value("relibra_job_attempt_began_timestamp_seconds") == newest.began_at
    assert value("relibra_job_heard_timestamp_seconds") == newest.heard_at
    assert value("relibra_steps_planned_total") == 0


def test_S9_a_packing_that_gave_up_is_told_of_until_one_packs(
    http: TestClient, job: WatchedJob, store: Store, run: Loop
) -> None:
    def is_told() -> bool:
        return 'relibra_packing_gave_up{job_id="job"} 1.0' in http.get("/metrics").text.splitlines()

    assert not is_told()
    run(store.note_packing(job.record, 5, PackingState.REFUSED, "it took longer than 10 s"))
    assert is_told()
    run(store.note_packing(job.record, 6, PackingState.PACKED, "packed"))
    assert not is_told()


def test_of_a_job_that_is_silent_for_an_hour_only_attempt_health_and_savings_are_told(
    http: TestClient, job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "relibra_not_balancing" in http.get("/metrics").text
    monkeypatch.setattr(metrics, "_LIVE_S", 0.0)
    text = http.get("/metrics").text
    assert not re.search("relibra_(not_balancing|fallback_ranks|plan_latency_seconds|packing_gave_up)", text)
    for name in ("job_health", "job_heard_timestamp_seconds", "lost_gpu_hours"):
        assert f"relibra_{name}" in text


def test_S9_tokens_that_end_are_told_of_while_they_are_valid(
    http: TestClient, job: WatchedJob, store: Store, run: Loop
) -> None:
    def due() -> dict[str, float]:
        pattern = r'^relibra_token_renewal_due_timestamp_seconds\{job_id="job",role="trainer",token_id="(\w+)"\} (\S+)$'
        return {name: float(at) for name, at in re.findall(pattern, http.get("/metrics").text, re.M)}

    run(store.create_token("job", Role.TRAINER))
    run(store.create_token("job", Role.TRAINER, lifetime_s=-1))
    token, _ = run(store.create_token("job", Role.TRAINER, lifetime_s=1000))
    assert due() == {token.token_id: pytest.approx(token.created_at + 900)}
    run(store.revoke_token(token.token_id))
    assert due() == {}


def test_S9_a_status_service_with_another_clock_says_so(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def offset_s() -> float:
        (line,) = re.findall(r"^relibra_status_clock_offset_seconds (\S+)$", http.get("/metrics").text, re.M)
        return float(line)

    assert abs(offset_s()) < 60
    now = time.time()
    monkeypatch.setattr("relibra.store.store.time.time", lambda: now - 3600)
    assert -3660 < offset_s() < -3540


def test_S9_an_error_that_nobody_expected_is_counted(http: TestClient) -> None:
    def num_errors() -> float:
        (line,) = re.findall(r"^relibra_status_unexpected_errors (\S+)$", http.get("/metrics").text, re.M)
        return float(line)

    logger = logging.getLogger("relibra")
    logger.addHandler(service_log.unexpected)  # as a process that logs does
    try:
        before = num_errors()
        logging.getLogger("relibra.status").error("this was expected")
        assert num_errors() == before
        logging.getLogger("relibra.status").error("this was not", exc_info=LookupError("a bug"))
        assert num_errors() == before + 1
    finally:
        logger.removeHandler(service_log.unexpected)


def test_the_port_for_prometheus_wants_no_token_and_shows_nothing_else(
    redis_url: str, job: WatchedJob, tmp_path: Path
) -> None:
    service = Service("status", redis_url, tmp_path, RELIBRA_AUTH="required", RELIBRA_METRICS_PORT="0")
    try:
        (address,) = re.findall(r"metrics on (\S+)/metrics", service.log())
        with urllib.request.urlopen(f"{address}/metrics", timeout=60) as answer:
            assert 'relibra_steps_planned_total{job_id="job"} 2.0' in answer.read().decode()
        for url in (f"{address}/v1/jobs", f"{address}/", f"{service.address}/metrics"):
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(url, timeout=60)
            assert refused.value.code == (401 if service.address in url else 404)
    finally:
        assert service.stop() == 0


def test_the_port_for_prometheus_answers_browsers_too(http: TestClient) -> None:
    context = http.app.state.context  # type: ignore[attr-defined]
    app = create_metrics_app(context, StatusSettings(redis_url="redis://nowhere"))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as browser:
        answer = browser.get("/", headers={"accept": "text/html"})
        assert (answer.status_code, answer.json()["detail"]) == (404, "GET /: Not Found")
        assert browser.get("/metrics", headers={"accept": "text/html"}).text.startswith("# HELP relibra_jobs")


def test_a_port_that_is_taken_is_named(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            StatusServer(StatusSettings(redis_url=redis_url, port=0, metrics_port=port))


@pytest.mark.parametrize(
    ("name", "verdict"), [("plan", "failing"), ("reports", "attention"), ("executed", "attention")]
)
def test_S9_what_was_damaged_in_redis_concerns_its_job_and_no_other(
    http: TestClient, job: WatchedJob, store: Store, run: Loop, redis_url: str, name: str, verdict: str
) -> None:
    other = WatchedJob(store, "other", model=job.model, cluster=job.cluster, num_micro_batches=2)
    run(other.register())
    key = JobKeys("job").attempt(job.record.epoch).step(2, name)
    with Redis.from_url(redis_url) as client:
        # Without steps after it, the damaged one is the newest.
        client.zremrangebyscore(JobKeys("job").attempt(job.record.epoch).of("steps"), 3, "+inf")
        for other_name in {"executed", "failure"} - {name}:
            client.delete(JobKeys("job").attempt(job.record.epoch).step(2, other_name))
        for field in (b"meta", *client.hkeys(key))[: 1 if key.endswith("plan") else None]:
            if client.hexists(key, field):
                client.hset(key, field, bytes(100))
    lines = http.get("/metrics").text.splitlines()
    assert f'relibra_job_health{{job_id="job",verdict="{verdict}"}} 1.0' in lines
    is_report = verdict == "attention"
    assert ('relibra_damaged_steps{job_id="job"} 1.0' in lines) == is_report
    # The steps beside the damaged one are shown.
    assert ('relibra_executed_step{job_id="job"} 1.0' in lines) == is_report
    assert 'relibra_job_health{job_id="other",verdict="waiting"} 1.0' in lines
    assert "was changed in Redis since it was stored" in http.get("/v1/jobs/job").json()["health"]["reason"]
    assert http.get("/v1/jobs/job/history").status_code == 200
    assert http.get("/", headers={"accept": "text/html"}).status_code == 200
    if is_report:
        answer = http.get("/v1/jobs/job/steps/2/execution")
        assert (answer.status_code, answer.json()["title"]) == (500, "Corrupt")
