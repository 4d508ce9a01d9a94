"""What Prometheus is told, and that docs/status.md lists all of it."""

import re
from pathlib import Path

from fastapi.testclient import TestClient
from watched_job import WatchedJob

DOCS = Path(__file__).parents[2] / "docs/status.md"


def test_metrics_tell_of_every_job(http: TestClient, job: WatchedJob) -> None:
    lines = http.get("/metrics").text.splitlines()
    assert "relibra_jobs 1.0" in lines
    assert 'relibra_steps_planned_total{job_id="job"} 2.0' in lines
    assert 'relibra_steps_pending{job_id="job"} 1.0' in lines
    after = job.plans[2].forecast.imbalance_after
    assert f'relibra_plan_imbalance_ratio{{job_id="job",when="after"}} {after}' in lines
    assert 'relibra_executed_step{job_id="job"} 2.0' in lines
    assert 'relibra_fallback_ranks{cause="late",job_id="job",phase="update"} 4.0' in lines
    assert 'relibra_fallback_ranks{cause="stale",job_id="job",phase="update"} 0.0' in lines
    assert 'relibra_missing_reports{job_id="job",phase="update"} 0.0' in lines


def test_all_metrics_are_documented(http: TestClient, job: WatchedJob) -> None:
    names = set(re.findall(r"^# TYPE (\S+)", http.get("/metrics").text, re.M))
    documented = set(re.findall(r"`(relibra_[a-z_]+)`", DOCS.read_text()))
    assert names <= documented
