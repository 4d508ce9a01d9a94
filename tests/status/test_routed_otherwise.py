"""Routing that differs from the plan is said on the page, in the JSON, in the job's health and in metrics."""

import pytest
from fastapi.testclient import TestClient

from harness.services import Loop
from harness.watched_job import WatchedJob
from relibra.planning.routing_check import RoutingCause, RoutingCheck

CHECK = RoutingCheck(num_cells=24, otherwise={RoutingCause.NO_REPLAY: 20})
SENTENCE = "outing differs from what was planned in 80 of 96 cells in phase update (likely cause: 80 no replay)"


@pytest.fixture
def routed(run: Loop, job: WatchedJob) -> WatchedJob:
    """The steps of `job`, and a step 6 whose plan was applied but whose routing was another."""

    async def train() -> None:
        await job.report(6, await job.plan(6), routing=CHECK)

    run(train())
    return job


def test_S9_routing_that_differs_is_said_wherever_a_user_looks(http: TestClient, routed: WatchedJob) -> None:
    (execution,) = http.get("/v1/jobs/job/steps/6/execution").json()
    assert execution["routing"] == {"num_cells": 96, "num_otherwise": 80, "otherwise": {"no replay": 80}}
    for report in http.get("/v1/jobs/job/steps/6/reports").json():
        assert report["routing"]["num_otherwise"] == 20
    told = http.get("/v1/jobs/job/steps/6/explain").json()["execution"]
    assert any(SENTENCE in each for each in told)
    page = http.get("/jobs/job/steps/6").text
    assert SENTENCE in page
    assert "80 of 96 cells" in page
    lines = http.get("/metrics").text.splitlines()
    assert 'relibra_routed_otherwise_cells{cause="no replay",job_id="job",phase="update"} 80.0' in lines
    assert 'relibra_routed_otherwise_cells{cause="fillers",job_id="job",phase="update"} 0.0' in lines
    assert 'relibra_compared_cells{job_id="job",phase="update"} 96.0' in lines


def test_S9_right_routing_says_nothing(http: TestClient, job: WatchedJob) -> None:
    assert "routing differs" not in http.get("/jobs/job/steps/1").text.lower()
    lines = http.get("/metrics").text.splitlines()
    assert 'relibra_routed_otherwise_cells{cause="no replay",job_id="job",phase="update"} 0.0' in lines
