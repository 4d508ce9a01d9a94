"""The JSON of jobs, steps, execution and history."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from harness.services import CLUSTER, MODEL
from harness.watched_job import WatchedJob


def test_jobs_are_shown_with_their_health(http: TestClient, job: WatchedJob) -> None:
    (shown,) = http.get("/v1/jobs").json()
    assert shown["job_id"] == "job"
    assert shown["attempt"]["epoch"] == f"{job.record.epoch:016x}"
    assert shown["attempt"]["model"]["num_experts"] == MODEL.num_experts
    assert shown["attempt"]["cluster"]["redundant_slots"] == CLUSTER.redundant_slots
    one = http.get("/v1/jobs/job").json()
    reason = "step 3 cannot be planned: the load is empty; 1 of the last 2 steps ran without a plan"
    assert one["health"] == shown["health"] == {"verdict": "failing", "reason": reason}


def test_S9_the_first_step_without_a_plan_and_why_are_fields(http: TestClient, job: WatchedJob) -> None:
    shown = http.get("/v1/jobs/job").json()
    assert shown["memory_forecasts"] == {"num_steps": 0, "num_exceeded": 0, "share": None}, (
        "its micro-batches are known"
    )
    balance = shown["balance"]
    assert (balance["since_step"], balance["obstacle"]) == (2, "fell_back")
    assert (balance["num_without_plan"], balance["num_executed"]) == (1, 2)
    assert "4 of 4 ranks kept the last plan" in balance["reason"]


def test_steps_are_shown_newest_first_in_pages_and_by_state(http: TestClient, job: WatchedJob) -> None:
    def numbers(query: str) -> list[int]:
        return [each["step"] for each in http.get(f"/v1/jobs/job/steps{query}").json()]

    steps = http.get("/v1/jobs/job/steps").json()
    assert [(each["step"], each["state"]) for each in steps] == [
        (5, "collecting"),
        (4, "queued"),
        (3, "failed"),
        (2, "planned"),
        (1, "planned"),
    ]
    assert steps[2]["failure"] == "the load is empty"
    assert steps[4]["plan"]["id"] == f"{job.record.epoch:016x}.1"
    assert all(each["num_sequences"] == len(job.ids) for each in steps)
    assert numbers("?limit=2") == [5, 4]
    assert numbers("?limit=2&before=4") == [3, 2]
    assert numbers("?state=planned") == [2, 1]
    assert numbers("?state=planned&limit=1&before=2") == [1]
    assert http.get("/v1/jobs/job/steps/4").json() == steps[1]


def test_an_execution_sums_up_what_ranks_reported(http: TestClient, job: WatchedJob) -> None:
    recompute, update = http.get("/v1/jobs/job/steps/1/execution").json()
    assert (recompute["phase"], update["phase"]) == ("recompute", "update")
    assert (update["num_applied"], update["num_expected"], update["missing"]) == (4, 4, [])
    assert update["imbalance"] == pytest.approx(job.plans[1].prediction.imbalance_after)
    (fallen,) = http.get("/v1/jobs/job/steps/2/execution").json()
    assert (fallen["num_applied"], fallen["fallbacks"]) == (0, {"late": 4})
    assert fallen["reasons"] == ["rank 3 without a plan in time"]
    assert http.get("/v1/jobs/job/steps/4/execution").json() == []


def test_reports_are_shown_and_filtered(http: TestClient, job: WatchedJob) -> None:
    assert len(http.get("/v1/jobs/job/steps/1/reports").json()) == 8
    (shown,) = http.get("/v1/jobs/job/steps/1/reports?phase=update&ep_rank=2&realised=true").json()
    assert (shown["phase"], shown["ep_rank"]) == ("update", 2)
    assert shown["applied"] == f"{job.record.epoch:016x}.1"
    np.testing.assert_array_equal(shown["realised_load"], job.plans[1].rank_loads_MLR[:, :, 2])
    assert http.get("/v1/jobs/job/steps/1/reports?ep_rank=2").json()[0]["realised_load"] == []


def test_a_step_explains_itself(http: TestClient, job: WatchedJob) -> None:
    executed = http.get("/v1/jobs/job/steps/1/explain").json()
    assert executed["headline"] == job.plans[1].reason
    assert "All 4 ranks applied the plan in phase update." in executed["execution"]
    assert any("without relibra" in each for each in executed["execution"])
    fallen = " ".join(http.get("/v1/jobs/job/steps/2/explain").json()["execution"])
    assert "4 of 4 ranks kept the last plan in phase update (4 late)" in fallen
    assert "plan_timeout" in fallen
    assert "the load is empty" in http.get("/v1/jobs/job/steps/3/explain").json()["headline"]


def test_the_history_of_a_job_is_oldest_first(http: TestClient, job: WatchedJob) -> None:
    points = http.get("/v1/jobs/job/history").json()
    assert [each["step"] for each in points] == [1, 2, 3, 4, 5]
    first, second = points[:2]
    prediction = job.plans[1].prediction
    assert first["imbalance_before"] == pytest.approx(prediction.imbalance_before)
    assert first["imbalance_realised"] == pytest.approx(prediction.imbalance_after)
    assert first["plan_wait_s"] == pytest.approx(0.023)
    assert (first["reorder_s"], first["replica_wait_s"]) == pytest.approx((0.2, 0.003))
    assert (first["num_fallbacks"], second["num_fallbacks"]) == (0, 4)
    assert points[2]["imbalance_after"] is None
    assert first["speedup_planned"] == pytest.approx(prediction.imbalance_before / prediction.imbalance_after)
    assert first["speedup_realised"] == pytest.approx(first["speedup_planned"])
    assert points[2]["speedup_realised"] is points[2]["plan_latency_s"] is None
    step = http.get("/v1/jobs/job/steps/1").json()
    assert first["plan_latency_s"] == step["plan"]["latency_s"] > 0
    assert first["duration_s"] == pytest.approx(sum(each["duration_s"] for each in step["phases"]))


def test_a_report_that_comes_later_is_seen_in_the_history(http: TestClient, job: WatchedJob, run, store) -> None:
    assert http.get("/v1/jobs/job/history").json()[1]["num_fallbacks"] == 4
    plan_id = run(store.get_plan_id(run(store.get_job("job")), 2))
    from relibra.planning import Phase

    run(job.report(2, plan_id, phase=Phase.RECOMPUTE))
    assert [each["phase"] for each in http.get("/v1/jobs/job/steps/2/execution").json()] == ["recompute", "update"]
    assert http.get("/v1/jobs/job/history").json()[1]["plan_wait_s"] == pytest.approx(0.033)


def test_a_caller_that_has_the_newest_content_gets_not_modified(http: TestClient, job: WatchedJob, run) -> None:
    for path in ("/v1/jobs", "/v1/jobs/job/steps", "/v1/jobs/job/steps/1/plan", "/v1/jobs/job/steps/1/heatmap?row=0"):
        answer = http.get(path)
        assert answer.status_code == 200
        tag = answer.headers["etag"]
        again = http.get(path, headers={"If-None-Match": f'"other", W/{tag}'})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert http.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    tag = http.get("/v1/jobs/job/steps").headers["etag"]
    run(job.collect(6))
    assert http.get("/v1/jobs/job/steps", headers={"If-None-Match": tag}).status_code == 200
