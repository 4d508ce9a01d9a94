"""The application as a whole: probes, errors, the OpenAPI description, and that it never writes."""

import pytest
from fastapi.testclient import TestClient
from redis import Redis

from harness.services import Loop
from harness.watched_job import WatchedJob
from relibra.status import create_app
from relibra.status.settings import StatusSettings
from relibra.store import Store
from relibra.store.keys import JobKeys

NOWHERE = "unix:///nowhere/redis.sock"


def test_health_and_readiness(http: TestClient) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ok"}


def test_without_redis_it_is_alive_and_not_ready_and_says_why() -> None:
    app = create_app(Store.open(NOWHERE), StatusSettings(redis_url=NOWHERE))
    with TestClient(app, base_url="http://localhost") as http:
        assert http.get("/healthz").status_code == 200
        for path in ("/readyz", "/metrics", "/v1/jobs"):
            response = http.get(path)
            assert response.status_code == 503
            assert "Redis" in response.json()["detail"]
            assert response.json()["retryable"]
        page = http.get("/", headers={"Accept": "text/html"})
        assert page.status_code == 503
        assert "Redis does not serve" in page.text
        assert 'data-events="/v1/events"' in page.text, "the page reloads by itself"


def test_L3_the_overview_says_for_a_day_what_redis_lost(http: TestClient, store: Store, run: Loop) -> None:
    assert "relibraredislostdata" not in http.get("/").text
    run(store.note_loss("its newest writes"))
    shown = http.get("/").text
    assert "Redis lost its newest writes; a planner noticed it at " in shown
    assert "/runbook#relibraredislostdata" in shown
    for damaged in ("oops", '["everything"]'):
        run(store._redis.set("relibra:loss", damaged))
        assert "Redis may have lost data: key relibra:loss was changed" in http.get("/").text
    run(store._redis.delete("relibra:loss"))
    run(store._redis.rpush("relibra:loss", "oops"))
    assert "Redis may have lost data: key relibra:loss in Redis is no string" in http.get("/").text


def test_L3_the_overview_names_the_settings_with_which_redis_may_lose_data(http: TestClient, redis_url: str) -> None:
    told = "This Redis may lose what it acknowledged (appendfsync everysec); set"
    with Redis.from_url(redis_url) as redis:
        try:
            for alert in ("relibraredisforgets", "relibraredisunfit"):
                redis.config_set("appendfsync", "everysec")
                shown = http.get("/").text
                assert told in shown
                assert f"/runbook#{alert}" in shown
                redis.config_set("appendfsync", "always")
                assert "may lose" not in http.get("/").text
        finally:
            redis.config_set("appendfsync", "always")


@pytest.mark.parametrize(
    ("path", "status", "title", "words"),
    [
        ("/v1/jobs/nobody", 404, "UnknownJob", "'nobody' is not registered"),
        ("/v1/jobs/nobody/steps", 404, "UnknownJob", "'nobody'"),
        ("/v1/jobs/job/steps/3/plan", 404, "NotFound", "the load is empty"),
        ("/v1/jobs/job/steps/4/plan", 404, "NotFound", "queued"),
        ("/v1/jobs/job/steps/9/plan", 404, "NotFound", "has no step 9"),
        ("/v1/jobs/job/steps/9", 404, "NotFound", "has no step 9"),
        ("/v1/jobs/job/steps/9/explain", 404, "NotFound", "has no step 9"),
        ("/v1/jobs/job/steps/9/execution", 404, "NotFound", "has no step 9"),
        ("/v1/jobs/job/steps/9/reports", 404, "NotFound", "has no step 9"),
        ("/v1/jobs/job/steps/5/plan", 404, "NotFound", "collecting"),
        ("/v1/jobs/job/steps/1/cells/2/0", 404, "NotFound", "no row 2; there are 0 to 1"),
        ("/v1/jobs/job/steps/1/cells/0/3", 404, "NotFound", "no layer 3"),
        ("/v1/jobs/job/steps/1/heatmap?row=7", 404, "NotFound", "no row 7"),
        ("/v1/jobs/job/steps/-1/plan", 422, "InvalidInput", "path.step"),
        ("/v1/jobs/job/steps/one/plan", 422, "InvalidInput", "'one'"),
        ("/v1/jobs/job/steps?limit=0", 422, "InvalidInput", "query.limit"),
        ("/v1/jobs/job/steps?state=lost", 422, "InvalidInput", "query.state"),
        ("/v1/nothing", 404, "HttpError", "/v1/nothing"),
    ],
)
def test_errors_are_problem_documents(
    http: TestClient, job: WatchedJob, path: str, status: int, title: str, words: str
) -> None:
    response = http.get(path, headers={"Accept": "text/html"})
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["title"]) == (status, title)
    assert words in problem["detail"]


def test_nothing_can_be_written(http: TestClient, job: WatchedJob) -> None:
    for path in ("/v1/jobs/job", "/jobs/job", "/"):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            response = http.request(method, path)
            assert response.status_code == 405
            assert response.headers["allow"]


def test_S6_no_redirect_repeats_the_name_that_a_client_calls_the_service(http: TestClient, job: WatchedJob) -> None:
    for path in ("/jobs/job/", "/v1/jobs/", "/jobs/job/steps/1"):
        response = http.get(path, headers={"Host": "localhost"}, follow_redirects=False)
        assert "localhost" not in response.headers.get("location", "")


def test_a_bug_is_a_problem_document_too(http: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "job_ids", None)
    response = http.get("/v1/jobs")
    assert response.status_code == 500
    assert response.json()["title"] == "InternalError"


def test_S9_the_page_of_a_step_is_shown_though_the_plan_before_it_is_damaged(
    http: TestClient, job: WatchedJob, redis_url: str
) -> None:
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.record.epoch).step(1, "plan"), "meta", bytes(100))
    damaged, sound = (http.get(f"/jobs/job/steps/{step}", headers={"Accept": "text/html"}) for step in (1, 2))
    assert "was changed in Redis since it was stored" in damaged.text
    assert sound.status_code == 200


def test_nothing_is_loaded_from_elsewhere(http: TestClient, job: WatchedJob) -> None:
    for path in ("/", "/jobs/job", "/jobs/job/steps/1", "/jobs/job/steps/1/cells/0/0", "/docs"):
        page = http.get(path)
        assert page.status_code == 200
        assert "default-src 'self'" in page.headers["content-security-policy"]
        for attribute in ('src="', 'href="', 'data-plotly="'):
            starts = [rest[:2] for rest in page.text.split(attribute)[1:]]
            assert all(start[0] in "/#" and start != "//" for start in starts)


def test_the_api_describes_every_field(http: TestClient) -> None:
    api = http.get("/openapi.json").json()
    assert {"/v1/jobs/{job_id}/steps/{step}/plan", "/v1/events", "/readyz"} <= api["paths"].keys()
    schemas = api["components"]["schemas"]
    assert schemas["PlanRecord"]["properties"]["digest"]["description"]
    assert schemas["StepSummary"]["properties"]["expired"]["description"] == (
        "When and why the full data expired; null while it is kept."
    )
    assert "token_hash" not in str(schemas), "secrets stay here"
    described = http.get("/docs").text
    assert all(path in described for path in api["paths"])


@pytest.mark.parametrize(
    "path", ["/" + "x" * 20_000, "/v1/jobs?limit=" + "x" * 20_000, "/v1/jobs/job/steps/" + "x" * 20_000]
)
def test_S7_what_a_caller_sent_is_cut_in_the_answer(http: TestClient, job: object, path: str) -> None:
    assert len(http.get(path).text) < 5_000
