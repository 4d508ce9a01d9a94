"""Attempts as viewers see them: the current one by default, older ones by number, and each with its own steps."""

import re

import pytest
from fastapi.testclient import TestClient

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.errors import StaleEpoch
from relibra.planning.launch import Launch
from relibra.store import PackingState, Refused, Store

THIRD = Launch(token="three", owner="host-c:33")
BY_ATTEMPT = (
    "",
    "/attempts",
    "/steps",
    "/steps/1",
    "/steps/1/explain",
    "/steps/1/execution",
    "/steps/1/reports",
    "/steps/1/plan",
    "/steps/1/plan.npz",
    "/steps/1/heatmap",
    "/steps/1/cells/0/0",
    "/history",
)


@pytest.fixture
def restarted(store: Store, run: Loop) -> WatchedJob:
    """A job whose attempt 1 ended with steps 1 and 2 planned and step 3 open, and whose attempt 2 planned step 2."""
    job = WatchedJob(store, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2)

    async def fill() -> None:
        await job.register(Launch(token="one", owner="host-a:4711"))
        await job.report(1, await job.plan(1))
        await job.plan(2)
        await job.collect(3)
        await job.restart(Launch(token="two", owner="host-b:99"))
        await job.report(2, await job.plan(2))

    run(fill())
    return job


def test_a_job_names_its_current_attempt(http: TestClient, restarted: WatchedJob, store: Store, run: Loop) -> None:
    shown = http.get("/v1/jobs/job").json()
    assert (shown["attempt"]["number"], shown["attempt"]["owner"]) == (2, "host-b:99")
    assert shown["attempt"]["ended_at"] is None
    assert shown["attempt"]["heard_at"] is not None
    assert shown["current_attempt"] == 2
    assert shown["attempt"]["epoch"] == f"{restarted.record.epoch:016x}"
    assert http.get("/v1/jobs").json() == [shown]


def test_attempts_are_listed_newest_first_with_their_steps(http: TestClient, restarted: WatchedJob) -> None:
    newest, oldest = http.get("/v1/jobs/job/attempts").json()
    assert (newest["number"], newest["owner"], oldest["number"], oldest["owner"]) == (2, "host-b:99", 1, "host-a:4711")
    assert oldest["ended_at"] == newest["began_at"]
    assert oldest["heard_at"] is not None
    assert (newest["first_step"], newest["last_step"], newest["num_planned_steps"]) == (2, 2, 1)
    assert (oldest["first_step"], oldest["last_step"], oldest["num_planned_steps"]) == (1, 3, 2)


def test_every_document_of_an_older_attempt_can_be_read(http: TestClient, restarted: WatchedJob) -> None:
    first = http.get("/v1/jobs/job/attempts").json()[1]["epoch"]
    for path in BY_ATTEMPT:
        answer = http.get(f"/v1/jobs/job{path}?attempt=1")
        assert answer.status_code == 200, path
        if "/plan" in path and not path.endswith("npz"):
            assert answer.json()["id"].startswith(first)
    assert [each["step"] for each in http.get("/v1/jobs/job/steps?attempt=1").json()] == [3, 2, 1]
    assert [each["step"] for each in http.get("/v1/jobs/job/steps").json()] == [2]
    assert http.get("/v1/jobs/job/steps/2/execution?attempt=1").json() == []
    assert len(http.get("/v1/jobs/job/steps/2/execution").json()) == 1
    assert http.get("/v1/jobs/job/steps/1/plan").status_code == 404


def test_S9_an_attempt_that_is_not_kept_is_refused_by_name(
    http: TestClient, restarted: WatchedJob, store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relibra.store.attempts.KNOWN_ATTEMPTS", 4)
    for path in BY_ATTEMPT:
        problem = http.get(f"/v1/jobs/job{path}?attempt=7").json()
        assert problem["detail"] == "job 'job' has no attempt 7: attempt 2 is current", path
    for number in range(3, 6):
        run(restarted.restart(Launch(token=f"launch {number}")))
    for path in BY_ATTEMPT:
        answer = http.get(f"/v1/jobs/job{path}?attempt=1")
        assert answer.status_code == 404, path
        assert answer.json()["detail"] == "attempt 1 of job 'job' is not kept any more: attempts 2 to 5 are", path
    assert http.get("/v1/jobs/nobody?attempt=1").json()["title"] == "UnknownJob"
    assert http.get("/v1/jobs/job?attempt=0").status_code == 422


def test_S9_a_new_attempt_is_neither_well_nor_stalled_from_the_data_before_it(
    http: TestClient, restarted: WatchedJob, run: Loop
) -> None:
    assert http.get("/v1/jobs/job").json()["health"]["verdict"] == "well"
    run(restarted.restart(THIRD))
    shown = http.get("/v1/jobs/job").json()
    assert shown["health"] == {
        "verdict": "waiting",
        "reason": "attempt 3 has begun, but no step has been reported yet",
    }
    assert (shown["balance"]["num_executed"], shown["balance"]["since_step"]) == (0, None)
    assert http.get("/v1/jobs/job?attempt=2").json()["health"]["verdict"] == "well"


def test_S9_the_health_of_an_attempt_that_is_over_is_its_health_at_its_end(
    http: TestClient, restarted: WatchedJob, run: Loop
) -> None:
    run(restarted.report(2, None))
    run(restarted.restart(THIRD))
    shown = http.get("/v1/jobs/job?attempt=2").json()
    assert shown["health"]["verdict"] == "unbalanced"
    assert (shown["attempt"]["number"], shown["current_attempt"]) == (2, 3)


def test_a_step_of_an_attempt_that_is_over_does_not_promise_a_plan(
    http: TestClient, restarted: WatchedJob, run: Loop, store: Store
) -> None:
    said = http.get("/v1/jobs/job/steps/3/explain?attempt=1").json()["headline"]
    assert "the attempt ended before the step had its schedule" in said
    assert http.get("/v1/jobs/job/steps/2/explain?attempt=1").json()["execution"] == [
        "No rank reported: the attempt ended before the step did."
    ]
    run(restarted.collect(3))
    run(store.put_schedule(restarted.record, 3, restarted.ids, restarted.schedule))
    assert "waits for a solver" in http.get("/v1/jobs/job/steps/3/explain").json()["headline"]
    run(restarted.restart(THIRD))
    said = http.get("/v1/jobs/job/steps/3/explain?attempt=2").json()["headline"]
    assert "the attempt ended before the step had its plan" in said


def test_links_on_pages_name_the_attempt(http: TestClient, restarted: WatchedJob) -> None:
    for path in (
        "/jobs/job",
        "/jobs/job?attempt=1",
        "/jobs/job/steps/2?attempt=1",
        "/jobs/job/steps/2/cells/0/0?attempt=1",
    ):
        text = http.get(path).text
        number = 1 if "attempt" in path else 2
        links = re.findall(r'(?:href|data-source)="((?:/v1)?/jobs/job/[^"]*)"', text)
        assert links
        assert all(f"attempt={number}" in each for each in links), (path, links)


@pytest.mark.parametrize("path", ["/jobs/job/steps/2", "/jobs/job/steps/2/cells/0/0", "/jobs/job/steps/2/cells?row=0"])
def test_a_page_of_a_step_has_a_url_that_stays_right(http: TestClient, restarted: WatchedJob, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200
    assert answer.url.params["attempt"] == "2"
    assert answer.url.path.startswith("/jobs/job/steps/2")


def test_a_page_says_which_attempt_it_shows(http: TestClient, restarted: WatchedJob) -> None:
    text = http.get("/jobs/job").text
    assert re.search(r"Attempt 2, launched by <code>host-b:99</code> <time.*, heard <span data-heard", text)
    assert re.search(r"replaced by attempt 2, \d+ s after it was last heard", text)
    assert "You look at" not in text
    for path in ("/jobs/job", "/jobs/job/steps/2", "/jobs/job/steps/2/cells/0/0"):
        assert "You look at <strong>attempt 1</strong>" in http.get(f"{path}?attempt=1").text, path
    assert "When attempt 1 ended:" in http.get("/jobs/job?attempt=1").text


def test_S9_a_job_whose_driver_packs_says_how_that_ended(
    http: TestClient, restarted: WatchedJob, run: Loop, store: Store
) -> None:
    assert http.get("/v1/jobs/job").json()["packing"] is None
    assert "packed" not in http.get("/jobs/job").text
    run(store.note_packing(restarted.record, 7, PackingState.PACKED, "packing brings the floor from 1.2 to 1.1"))
    shown = http.get("/v1/jobs/job").json()["packing"]
    assert (shown["step"], shown["state"]) == (7, "packed")
    page = http.get("/jobs/job").text
    assert "Step 7 was packed" in page
    assert "packing brings the floor from 1.2 to 1.1" in page
    run(store.note_packing(restarted.record, 8, PackingState.REFUSED, "the driver stopped waiting after 10.0 s"))
    assert http.get("/v1/jobs/job").json()["packing"]["state"] == "refused"
    page = http.get("/jobs/job").text
    assert "Step 8 was not packed and keeps the schedule of its framework" in page
    assert "the driver stopped waiting after 10.0 s" in page
    assert http.get("/v1/jobs/job?attempt=1").json()["packing"] is None, "of another attempt"


def test_S9_an_older_launch_that_still_calls_is_shown_where_people_look(
    http: TestClient, restarted: WatchedJob, run: Loop, store: Store
) -> None:
    assert http.get("/v1/jobs/job").json()["refused_launch"] is None
    run(store.note_refusal(restarted.record, Refused.LAUNCH, 0, StaleEpoch("host-c:33 launched this job too")))
    shown = http.get("/v1/jobs/job").json()
    assert shown["refused_launch"]["text"] == "host-c:33 launched this job too"
    assert shown["health"]["verdict"] == "well", "the job itself goes on as before"
    for path in ("/", "/jobs/job"):
        assert "host-c:33 launched this job too" in http.get(path).text
    assert "host-c:33" not in http.get("/jobs/job?attempt=1").text
    run(restarted.restart(THIRD))
    assert http.get("/v1/jobs/job").json()["refused_launch"] is None
    assert http.get("/v1/jobs/job?attempt=2").json()["refused_launch"] is None


def test_an_attempt_says_why_it_ended(http: TestClient, restarted: WatchedJob, run: Loop, store: Store) -> None:
    run(store.rollback("job", restarted.record.epoch, 2))
    text = http.get("/jobs/job").text
    assert "the training went back to step 2, as attempt 3" in text
    assert re.search("Attempt 3, of the launch by <code>host-b:99</code>, which went back to step 2 <time", text)
    assert re.search(r"replaced by attempt 2, \d+ s after it was last heard", text)
    assert [each["rolled_back_to"] for each in http.get("/v1/jobs/job/attempts").json()] == [2, None, None]
    assert http.get("/v1/jobs/job/attempts").json()[1]["heard_at"] is not None


def test_a_job_whose_training_ended_says_so(http: TestClient, restarted: WatchedJob, run: Loop, store: Store) -> None:
    run(store.end_attempt("job", restarted.record.epoch))
    health = http.get("/v1/jobs/job").json()["health"]
    assert health["verdict"] == "ended"
    assert re.match(r"the training ended at \d{4}-\d\d-\d\d \d\d:\d\d UTC; at its end: ", health["reason"])
    assert 'relibra_job_health{job_id="job",verdict="ended"} 1.0' in http.get("/metrics").text
    assert "relibra_steps_planned" not in http.get("/metrics").text, "nobody can mend it"
    run(restarted.restart(THIRD))
    assert http.get("/v1/jobs/job").json()["health"]["verdict"] != "ended"
    assert "its training ended; attempt 3 followed" in http.get("/jobs/job").text
