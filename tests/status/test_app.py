"""The status service on a real Redis."""

from collections.abc import Iterator

import numpy as np
import pytest
from fastapi.testclient import TestClient
from services_harness import CLUSTER, MODEL, PARAMS, count, plain_plan, routed_experts

from relibra.planning import ExecutionReport, Phase, PlanId, Schedule
from relibra.status import create_app
from relibra.store import EncodedPlan, JobRecord, SequenceCounts, Store

IDS = [f"seq-{index}" for index in range(8)]
COUNTS_SLE = np.stack([count(routed_experts(index, 6)) for index in range(8)])
SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
PLAN = plain_plan(COUNTS_SLE, SCHEDULE)


@pytest.fixture
def http(redis_url: str) -> Iterator[TestClient]:
    with TestClient(create_app(Store.open(redis_url)), raise_server_exceptions=False) as http:
        yield http


@pytest.fixture
def job(http: TestClient, redis_url: str) -> JobRecord:
    """A job with a planned step 1, a failed step 2, a scheduled step 3, and a step 4 that is being collected."""

    async def fill() -> JobRecord:
        store = Store.open(redis_url)
        job = await store.register_job("job", MODEL, CLUSTER, PARAMS)
        for step in (1, 2, 3, 4):
            await store.put_counts(
                [
                    SequenceCounts(job_id="job", step=step, sequence_id=name, counts_LE=counts_LE)
                    for name, counts_LE in zip(IDS, COUNTS_SLE, strict=True)
                ]
            )
            if step < 4:
                await store.put_schedule("job", step, IDS, SCHEDULE)
        await store.publish_plan("job", 1, EncodedPlan.of(PLAN), epoch=job.epoch)
        await store.plan_failed("job", 2, "the load is empty")
        await store.put_report(
            "job",
            ExecutionReport(
                step=1,
                phase=Phase.UPDATE,
                ep_group=0,
                ep_rank=2,
                applied=PlanId(epoch=job.epoch, version=1),
                reason="as planned",
                realised_load_ML=np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int64),
                reorder_sent_bytes=10,
                replica_sent_bytes=20,
                plan_wait_s=0.5,
            ),
        )
        await store.close()
        return job

    assert http.portal is not None
    return http.portal.call(fill)


def test_health_and_readiness(http: TestClient) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ok"}


def test_without_redis_it_is_alive_and_not_ready_and_says_why() -> None:
    with TestClient(create_app(Store.open("unix:///nowhere/redis.sock"))) as http:
        assert http.get("/healthz").status_code == 200
        for path in ("/readyz", "/metrics", "/v1/jobs"):
            response = http.get(path)
            assert response.status_code == 503
            assert response.headers["content-type"] == "application/problem+json"
            problem = response.json()
            assert (problem["title"], problem["retryable"]) == ("Unavailable", True)
            assert "/nowhere/redis.sock" in problem["detail"]


def test_jobs_are_shown_as_registered(http: TestClient, job: JobRecord) -> None:
    (shown,) = http.get("/v1/jobs").json()
    assert shown["job_id"] == "job"
    assert shown["epoch"] == f"{job.epoch:016x}"
    assert shown["model"]["num_experts"] == 8
    assert shown["cluster"]["gpus_per_node"] == 2
    assert http.get("/v1/jobs/job").json() == shown


def test_steps_are_shown_newest_first_with_their_state(http: TestClient, job: JobRecord) -> None:
    steps = http.get("/v1/jobs/job/steps").json()
    assert [(each["step"], each["state"]) for each in steps] == [
        (4, "collecting"),
        (3, "solving"),
        (2, "failed"),
        (1, "planned"),
    ]
    assert steps[2]["failure"] == "the load is empty"
    assert steps[3]["plan"]["id"] == f"{job.epoch:016x}.1"
    assert all(each["num_sequences"] == 8 for each in steps)
    assert [each["step"] for each in http.get("/v1/jobs/job/steps?limit=2").json()] == [4, 3]


def test_a_plan_is_shown_with_its_cells(http: TestClient, job: JobRecord) -> None:
    shown = http.get("/v1/jobs/job/steps/1/plan").json()
    assert shown["id"] == f"{job.epoch:016x}.1"
    assert shown["digest"] == PLAN.digest.hex()
    assert shown["reason"] == PLAN.reason
    assert shown["forecast"]["imbalance_after"] == pytest.approx(PLAN.forecast.imbalance_after)
    assert shown["home_rank"] == PLAN.home_rank_LE.tolist()
    assert shown["num_micro_batches"] == 2
    cells = shown["cells"]
    np.testing.assert_array_equal(cells["slowest_rank_tokens"], PLAN.rank_loads_MLR.max(axis=-1))
    np.testing.assert_array_equal(cells["num_replicas"], np.zeros((2, 3)))
    np.testing.assert_allclose(cells["mean_rank_tokens"], PLAN.rank_loads_MLR.mean(axis=-1), atol=0.05)
    assert np.shape(cells["lower_bound_tokens"]) == (2, 3)


def test_reports_are_shown(http: TestClient, job: JobRecord) -> None:
    (shown,) = http.get("/v1/jobs/job/steps/1/reports").json()
    assert (shown["phase"], shown["ep_rank"], shown["applied"]) == ("update", 2, f"{job.epoch:016x}.1")
    assert shown["realised_tokens"] == [[1, 2, 3], [4, 5, 6]]
    assert http.get("/v1/jobs/job/steps/3/reports").json() == []


@pytest.mark.parametrize(
    ("path", "status", "title", "words"),
    [
        ("/v1/jobs/nobody", 404, "UnknownJob", "'nobody' is not registered"),
        ("/v1/jobs/nobody/steps", 404, "UnknownJob", "'nobody'"),
        ("/v1/jobs/job/steps/2/plan", 404, "NotFound", "the load is empty"),
        ("/v1/jobs/job/steps/3/plan", 404, "NotFound", "solving"),
        ("/v1/jobs/job/steps/9/plan", 404, "NotFound", "collecting"),
        ("/v1/jobs/job/steps/-1/plan", 422, "InvalidInput", "path.step"),
        ("/v1/jobs/job/steps/one/plan", 422, "InvalidInput", "'one'"),
        ("/v1/jobs/job/steps?limit=0", 422, "InvalidInput", "query.limit"),
        ("/v1/nothing", 404, "HttpError", "/v1/nothing"),
    ],
)
def test_errors_are_problem_documents(
    http: TestClient, job: JobRecord, path: str, status: int, title: str, words: str
) -> None:
    response = http.get(path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["title"]) == (status, title)
    assert words in problem["detail"]


def test_nothing_can_be_written(http: TestClient, job: JobRecord) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert http.request(method, "/v1/jobs/job").status_code == 405


def test_metrics_tell_of_every_job(http: TestClient, job: JobRecord) -> None:
    text = http.get("/metrics").text
    assert "relibra_jobs 1.0" in text
    assert 'relibra_steps_planned_total{job_id="job"} 1.0' in text
    assert 'relibra_steps_pending{job_id="job"} 1.0' in text
    after = PLAN.forecast.imbalance_after
    assert f'relibra_plan_imbalance_ratio{{job_id="job",when="after"}} {after}' in text


def test_a_bug_is_a_problem_document_too(http: TestClient, job: JobRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "list_jobs", None)
    response = http.get("/v1/jobs")
    assert response.status_code == 500
    assert response.json()["title"] == "InternalError"


def test_the_api_describes_itself_with_examples(http: TestClient) -> None:
    api = http.get("/openapi.json").json()
    assert {"/v1/jobs/{job_id}/steps/{step}/plan", "/readyz"} <= api["paths"].keys()
    plan = api["components"]["schemas"]["PlanView"]["properties"]
    assert plan["id"]["examples"]
    assert plan["home_rank"]["description"]
    assert http.get("/docs").status_code == 200
