"""From a rollout worker's report to the status page, over real processes."""

import json
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.replicated import executed_loads
from harness.services import (
    CLUSTER,
    MODEL,
    PARAMS,
    Service,
    count,
    report_sequences,
    routed_experts,
)
from relibra.planning import ExecutionReport, Phase, Schedule, StepLoad, check_step_plan
from relibra.planning.load import imbalance
from relibra.planning.memory import ActivationMemory
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

MEMORY = ActivationMemory(kept_bytes=1000, num_stages=MODEL.num_layers, budget_bytes=1)
SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
JOB = "Qwen3-30B-A3B_GSPO.v2"
"""Names of experiments have capitals; they must pass every boundary on the way."""


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.load(response)


def test_reports_become_a_plan_that_is_executed_and_shown(planner: Service, redis_url: str, tmp_path: Path) -> None:
    status = Service("status", redis_url, tmp_path)
    try:
        with PlannerClient(planner.address) as client:
            epoch = client.register_job(JOB, MODEL, CLUSTER, replace(PARAMS, memory=MEMORY))
            ids = report_sequences(planner.address, JOB, 5)
            client.submit_schedule(JOB, 5, ids, SCHEDULE)
            plan = client.fetch_plan(JOB, 5, MODEL, wait_s=60)
            check_step_plan(plan, MODEL, CLUSTER)
            assert plan.excess.startswith("activations of experts need"), "M1: ranks hear it before the step"
            assert (plan.step, plan.id.epoch, plan.id.version) == (5, epoch, 1)
            counts_SLE = np.stack([count(routed_experts(index, 5 + index)) for index in range(8)])
            loads_MLR = executed_loads(plan, StepLoad.of(counts_SLE, SCHEDULE, CLUSTER), CLUSTER)
            for rank in range(CLUSTER.num_ranks):
                client.report_execution(
                    JOB,
                    ExecutionReport(
                        step=5,
                        phase=Phase.UPDATE,
                        ep_group=0,
                        ep_rank=rank,
                        applied=plan.id,
                        reason="as planned",
                        realised_load_ML=loads_MLR[:, :, rank],
                        reorder_sent_bytes=0,
                        replica_sent_bytes=0,
                        plan_wait_s=0.0,
                    ),
                )
        jobs = get(f"{status.address}/v1/jobs")
        assert [each["job_id"] for each in jobs] == [JOB]
        shown = get(f"{status.address}/v1/jobs/{JOB}/steps/5/plan")
        assert (shown["id"], shown["digest"]) == (str(plan.id), plan.digest.hex())
        assert shown["reason"] == plan.reason
        heat = get(f"{status.address}/v1/jobs/{JOB}/steps/5/heatmap")
        np.testing.assert_array_equal(heat["after_tokens"], loads_MLR.sum(axis=0))
        assert shown["prediction"]["imbalance_after"] == pytest.approx(imbalance(loads_MLR))
        assert shown["prediction"]["imbalance_after"] < shown["prediction"]["imbalance_before"]
        reports = get(f"{status.address}/v1/jobs/{JOB}/steps/5/reports?realised=true")
        realised_MLR = np.stack([each["realised_load"] for each in reports], axis=-1)
        assert imbalance(realised_MLR) == pytest.approx(shown["prediction"]["imbalance_after"])
        with urllib.request.urlopen(f"{status.address}/metrics", timeout=60) as metrics:
            text = metrics.read().decode()
        assert f'relibra_job_health{{job_id="{JOB}",verdict="well"}} 1.0' in text
        # M1: what ranks took is what their plan said.
        promised, (took,) = shown["prediction"]["memory"], get(f"{status.address}/v1/jobs/{JOB}/steps/5")["phases"]
        assert took["cum_overload"] == pytest.approx(promised["after"]["cum_overload"])
        assert took["peak_bytes"] == promised["after"]["size_bytes"] < promised["before"]["size_bytes"]
        for metric in (
            'plan_activation_bytes{job_id="%s",when="after"}',
            'realised_activation_bytes{job_id="%s",phase="update"}',
        ):
            assert f"relibra_{metric % JOB} {float(took['peak_bytes'])}" in text
        with urllib.request.urlopen(f"{status.address}/jobs/{JOB}", timeout=60) as page:
            assert f"<h1>{JOB}</h1>" in page.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{status.address}/v1/jobs/{JOB.lower()}")
        assert [each["state"] for each in get(f"{status.address}/v1/jobs/{JOB}/steps")] == ["planned"]
        assert status.stop() == 0
        assert planner.stop() == 0
    finally:
        status.stop()


@pytest.mark.long
def test_S8_two_planners_on_one_store_serve_one_plan(planner: Service, redis_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = Service("planner", redis_url, folder)
    try:
        with PlannerClient(planner.address) as ours, PlannerClient(other.address) as theirs:
            epoch = ours.register_job("job", MODEL, CLUSTER, PARAMS)
            assert theirs.register_job("job", MODEL, CLUSTER, PARAMS) == epoch
            for step in range(1, 6):
                ids = report_sequences(planner.address, "job", step)
                ours.submit_schedule("job", step, ids, SCHEDULE)
                theirs.submit_schedule("job", step, ids, SCHEDULE)
                plans = [each.fetch_plan("job", step, MODEL, wait_s=60) for each in (ours, theirs)]
                assert plans[0].id == plans[1].id
                assert plans[0].digest == plans[1].digest
                assert plans[0].id.version == step
        assert "Traceback" not in planner.log() + other.log()
    finally:
        other.stop()
