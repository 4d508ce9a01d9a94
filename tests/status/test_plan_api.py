"""The JSON of plans, compared with the published plan."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from harness.plan_files import read_plan_file
from harness.services import CLUSTER, MODEL
from harness.watched_job import WatchedJob

PLAN = "/v1/jobs/job/steps/2/plan"


def test_a_plan_is_shown_without_its_arrays(http: TestClient, job: WatchedJob) -> None:
    plan, shown = job.plans[2], http.get(PLAN).json()
    assert shown["id"] == f"{job.record.epoch:016x}.2"
    assert shown["digest"] == plan.digest.hex()
    assert shown["reason"] == plan.reason
    assert shown == http.get("/v1/jobs/job/steps/2").json()["plan"]


def test_a_plan_is_downloaded_as_its_file(http: TestClient, job: WatchedJob) -> None:
    answer = http.get(f"{PLAN}.npz")
    assert "job-step-2.npz" in answer.headers["content-disposition"]
    assert read_plan_file(answer.content).digest == job.plans[2].digest


def test_a_heat_map_has_loads_before_and_after(http: TestClient, job: WatchedJob) -> None:
    plan = job.plans[2]
    before_MLR = np.zeros_like(plan.rank_loads_MLR)
    for (row, layer, expert, _), tokens in zip(plan.quotas.index_Q4, plan.quotas.tokens_Q, strict=True):
        before_MLR[row, layer, expert // 2] += tokens
    for query, rows in (("", slice(None)), ("?row=0", slice(0, 1)), ("?row=1", slice(1, 2))):
        shown = http.get(f"/v1/jobs/job/steps/2/heatmap{query}").json()
        np.testing.assert_array_equal(shown["before_tokens"], before_MLR[rows].sum(axis=0))
        np.testing.assert_array_equal(shown["after_tokens"], plan.rank_loads_MLR[rows].sum(axis=0))
        assert shown["num_rows"] == 2
        for layer in range(MODEL.num_layers):
            assert shown["mean_tokens"][layer] <= shown["floor_tokens"][layer] + 0.1
            assert shown["floor_tokens"][layer] <= plan.rank_loads_MLR[rows, layer].max(axis=-1).sum() + 0.1


def test_a_cell_is_shown_in_full(http: TestClient, job: WatchedJob) -> None:
    plan = job.plans[2]
    for row in range(2):
        for layer in range(MODEL.num_layers):
            cell = http.get(f"/v1/jobs/job/steps/2/cells/{row}/{layer}").json()
            after_R = plan.rank_loads_MLR[row, layer]
            assert [each["after_tokens"] for each in cell["ranks"]] == after_R.tolist()
            assert [each["node"] for each in cell["ranks"]] == [0, 0, 1, 1]
            assert all(each["home_tokens"] + each["replica_tokens"] == each["after_tokens"] for each in cell["ranks"])
            assert cell["gap"] == pytest.approx(after_R.max() / plan.lower_bound_ML[row, layer] - 1)
            assert cell["gap"] >= 0
            by_rank = np.zeros(4, dtype=int)
            for expert in cell["experts"]:
                by_rank[expert["home_rank"]] += expert["home_tokens"]
                for replica in expert["replicas"]:
                    by_rank[replica["rank"]] += replica["tokens"]
                replicas = sum(each["tokens"] for each in expert["replicas"])
                assert expert["load_tokens"] == expert["home_tokens"] + replicas
            np.testing.assert_array_equal(by_rank, after_R)


def test_a_job_that_is_registered_again_shows_its_own_plans(http: TestClient, job: WatchedJob, run, store) -> None:
    path = "/v1/jobs/job/steps/1/plan"
    old = http.get(path)
    run(store.remove_job("job"))
    anew = WatchedJob(store, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2, tokens_per_sequence=300)
    run(anew.register())
    run(anew.plan(1))
    new = http.get(path, headers={"If-None-Match": old.headers["etag"]})
    assert new.status_code == 200
    assert new.json()["digest"] == anew.plans[1].digest.hex() != old.json()["digest"]
