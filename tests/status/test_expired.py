"""Steps that expired, and steps that never were, on pages and in JSON."""

import pytest
from fastapi.testclient import TestClient

from harness.services import Loop
from harness.watched_job import WatchedJob
from relibra.planning.launch import Launch
from relibra.store import ExpiryCause, Store

FULL_DATA = ("plan", "plan.npz", "heatmap", "cells/0/0", "explain", "execution", "reports")


@pytest.fixture
def expired(job: WatchedJob, run: Loop) -> WatchedJob:
    """The job of `conftest`, whose steps 1 to 3 have expired: executed, fallen back, failed."""
    run(job.expire(1, 2, 3, cause=ExpiryCause.BYTES))
    return job


def test_an_expired_step_shows_its_summary(http: TestClient, job: WatchedJob, run: Loop) -> None:
    before = http.get("/v1/jobs/job/steps/1").json()
    assert before["expired"] is before["expiry"] is None
    run(job.expire(1))
    after = http.get("/v1/jobs/job/steps/1").json()
    assert after["expired"]["cause"] == "steps"
    assert after["expiry"] == (
        "full data expired after 0 s, because newer steps took its place (retained_steps); only this summary remains"
    )
    assert [phase["phase"] for phase in after["phases"]] == ["recompute", "update"]
    for name in ("step", "state", "num_sequences", "failure"):
        assert after[name] == before[name]
    assert after["plan"]["id"] == before["plan"]["id"]
    assert after["plan"]["prediction"] == before["plan"]["prediction"]
    assert after["phases"] == before["phases"]


def test_S9_the_full_data_of_an_expired_step_is_refused_by_name(http: TestClient, expired: WatchedJob) -> None:
    for part in FULL_DATA:
        answer = http.get(f"/v1/jobs/job/steps/1/{part}")
        assert answer.status_code == 404, part
        assert "step 1 of job 'job' has expired: only the summary" in answer.json()["detail"], part
        never = http.get(f"/v1/jobs/job/steps/99/{part}").json()
        assert never["detail"] == "job 'job' has no step 99: steps 4 to 5 are kept", part
    assert http.get("/v1/jobs/job/steps/99").status_code == 404
    assert http.get("/jobs/job/steps/99").status_code == 404


def test_lists_and_history_go_on_over_expired_steps(http: TestClient, job: WatchedJob, run: Loop) -> None:
    def history(query: str = "") -> list[dict[str, object]]:
        found: list[dict[str, object]] = http.get(f"/v1/jobs/job/history{query}").json()
        return found

    before = history()
    run(job.expire(1, 2, 3))
    after = history()
    assert [each["is_expired"] for each in after] == [True, True, True, False, False]
    for was, now in zip(before, after, strict=True):
        published = was.pop("published_at"), now.pop("published_at")
        assert (published[0] is None) == (published[1] is None)
        assert now | {"is_expired": False} == was
    assert [each["step"] for each in history("?limit=2&before=4")] == [2, 3]
    assert [each["step"] for each in history("?points=2")] == [1, 3, 4, 5]
    steps = http.get("/v1/jobs/job/steps").json()
    assert [(each["step"], each["expired"] is not None) for each in steps] == [
        (5, False),
        (4, False),
        (3, True),
        (2, True),
        (1, True),
    ]
    assert steps[2]["failure"] == "the load is empty"
    assert [each["step"] for each in http.get("/v1/jobs/job/steps?state=planned").json()] == [2, 1]
    assert [each["step"] for each in http.get("/v1/jobs/job/steps?limit=2&before=4").json()] == [3, 2]


def test_pages_of_expired_steps_live_as_long_as_the_job(http: TestClient, expired: WatchedJob) -> None:
    page = http.get("/jobs/job").text
    assert page.count(">expired</span>") == 3
    for step, said in ((1, "ranks"), (2, "4 late"), (3, "the load is empty")):
        shown = http.get(f"/jobs/job/steps/{step}")
        assert shown.status_code == 200
        assert "Full data expired after 0 s" in shown.text
        assert "because the steps of the job took more memory than they may (retained_bytes)" in shown.text
        assert said in shown.text
    cell = http.get("/jobs/job/steps/1/cells/0/0")
    assert cell.status_code == 404
    assert "only the summary of the step remains" in cell.text


def test_an_attempt_without_full_data_is_still_shown(
    http: TestClient, expired: WatchedJob, store: Store, run: Loop
) -> None:
    first = expired.record
    for number in (2, 3):
        run(expired.restart(Launch(token=f"launch {number}")))
    measured, _ = run(store.measure_steps(first))
    chosen = dict.fromkeys([each for each in measured if not each.is_pending], ExpiryCause.ATTEMPTS)
    run(store.expire_steps(first, chosen, 0.0))
    attempts = http.get("/v1/jobs/job/attempts").json()
    assert (attempts[-1]["first_step"], attempts[-1]["last_step"]) == (1, 5)
    assert http.get("/v1/jobs/job/steps/2?attempt=1").json()["expired"]
    assert http.get("/v1/jobs/job/steps/2").status_code == 404
