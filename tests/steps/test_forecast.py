"""A trainer that replays nothing gets plans from the loads of earlier steps, from a real planner over real gRPC."""

import asyncio
import json
from urllib.request import urlopen

import numpy as np
import pytest

from harness.plan_files import read_plan_file
from harness.services import CLUSTER, MODEL, PARAMS, Service, routed_experts
from relibra.errors import NotReady
from relibra.planning import Plan, Schedule, StepLoad, check_plan, check_step_plan, imbalance
from relibra.planning.expected.realised import realised_loads
from relibra.planning.load import home_loads
from relibra.planning.plan import Basis
from relibra.planning.plan_file import plan_to_bytes
from relibra.rollout import RolloutReporter
from relibra.steps import submit_forecast
from relibra.store import Store
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration


def plan_of(service: Service, job_id: str, step: int) -> Plan:
    async def read() -> Plan:
        async with Store.open(service.redis_url) as store:
            return await store.get_plan(await store.get_job(job_id), step)

    return asyncio.run(read())


def report(service: Service, job_id: str, step: int) -> None:
    """Report the routing of a step under sequence ids that no schedule names."""
    with RolloutReporter(service.address, job_id, num_experts=MODEL.num_experts) as reporter:
        for place in range(12):
            assert reporter.report(step, f"routed-{place}", routed_experts(100 * step + place, 400))


def test_a_step_is_planned_before_its_routing_is_known(
    shared_planner: Service, client: PlannerClient, job_id: str
) -> None:
    submit_forecast(client, job_id, 0, 2, CLUSTER)
    first = client.fetch_plan(job_id, 0, MODEL, wait_s=60)
    assert first.basis is Basis.PREVIOUS_STEPS
    assert not len(first.replica_index_Y4), "nothing is known yet"
    report(shared_planner, job_id, 0)  # the step has its plan already; later steps profit from the report
    submit_forecast(client, job_id, 1, 2, CLUSTER)
    step_plan = client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    check_step_plan(step_plan, MODEL, CLUSTER)
    assert step_plan.basis is Basis.PREVIOUS_STEPS
    assert step_plan.reason.startswith("forecast from the previous steps: ")
    plan = plan_of(shared_planner, job_id, 1)
    check_plan(plan)
    assert plan.digest == step_plan.digest
    again = read_plan_file(plan_to_bytes(plan))
    assert (again.digest, again.prediction.basis) == (plan.digest, Basis.PREVIOUS_STEPS)
    counts_SLE = np.stack([count_of(routed_experts(1000 + place, 300)) for place in range(16)])
    load = StepLoad.of(counts_SLE, Schedule.round_robin(16, 2, CLUSTER), CLUSTER)
    plain = imbalance(home_loads(load.load_MLE, CLUSTER.identity_placement(MODEL), CLUSTER.num_ranks))
    assert imbalance(realised_loads(plan, load)) - 1 < 0.3 * (plain - 1)


def count_of(routed_TLK: np.ndarray) -> np.ndarray:
    return (routed_TLK[..., None] == np.arange(MODEL.num_experts)).sum(axis=(0, 2))


def test_only_the_last_steps_count_and_only_earlier_ones(
    shared_planner: Service, client: PlannerClient, job_id: str
) -> None:
    for step in (0, 7):
        report(shared_planner, job_id, step)
    submit_forecast(client, job_id, 5, 1, CLUSTER)
    with_later = client.fetch_plan(job_id, 5, MODEL, wait_s=60)
    alone = f"{job_id[:50]}-alone"
    client.register_job(alone, MODEL, CLUSTER, PARAMS)
    report(shared_planner, alone, 0)
    submit_forecast(client, alone, 5, 1, CLUSTER)
    assert client.fetch_plan(alone, 5, MODEL, wait_s=60).digest == with_later.digest


def test_the_rollout_of_a_step_is_waited_for(shared_planner: Service, client: PlannerClient, job_id: str) -> None:
    report(shared_planner, job_id, 1)
    ids = [f"routed-{place}" for place in range(12)]
    client.submit_schedule(job_id, 1, ids, Schedule.round_robin(12, 2, CLUSTER), Basis.ROLLOUT)
    plan = client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    assert plan.basis is Basis.ROLLOUT
    assert plan.reason.startswith("forecast from the rollout: ")
    with pytest.raises(NotReady):
        client.fetch_plan(job_id, 2, MODEL)


def test_the_status_service_says_that_it_is_a_forecast(
    shared_planner: Service, client: PlannerClient, job_id: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    report(shared_planner, job_id, 0)
    submit_forecast(client, job_id, 1, 2, CLUSTER)
    client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    status = Service("status", shared_planner.redis_url, tmp_path_factory.mktemp("status"))
    try:
        with urlopen(f"{status.address}/v1/jobs/{job_id}/steps/1", timeout=30) as answer:
            step = json.load(answer)
        with urlopen(f"{status.address}/jobs/{job_id}/steps/1", timeout=30) as answer:
            page = answer.read().decode()
    finally:
        status.stop()
    assert step["plan"]["prediction"]["basis"] == "previous steps"
    assert '<span class="badge attention">forecast</span>' in page
