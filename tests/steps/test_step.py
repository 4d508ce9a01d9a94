"""Batches shaped like the frameworks' go to a real planner; its plan is compared with what the frameworks replay."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from harness.framework_batches import (
    LAYERS,
    RANKS,
    nemo_batch,
    skyrl_batches,
    slime_rollout_data,
    trained_counts,
    verl_data,
)
from harness.replicated import executed_loads
from harness.services import Service
from relibra.errors import Conflict, InvalidInput, LimitExceeded
from relibra.planning import Cluster, Model, StepLoad, check_step_plan, imbalance
from relibra.planning.load import home_loads
from relibra.plugins.nemo_rl import batch as nemo_rl
from relibra.plugins.skyrl import batch as skyrl
from relibra.plugins.slime import batch as slime
from relibra.plugins.verl import batch as verl
from relibra.rollout import RolloutReporter
from relibra.steps import RankBatch, TrainerLayout, report_rank, submit_step
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

MODEL = Model(num_layers=2, num_experts=8, top_k=2)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=RANKS.num_ep_groups)
INDICES = ([[2], [0, 3, 1]], [[1, 0], [3, 2]])
FRAMEWORKS: dict[str, tuple[TrainerLayout, Callable[[int], RankBatch]]] = {
    "slime": (slime.trainer_layout(RANKS, 4), lambda rank: slime.rank_batch(slime_rollout_data(rank), LAYERS)),
    "verl": (
        verl.trainer_layout(RANKS),
        lambda rank: verl.rank_batch(verl_data(rank), [None] * 2, INDICES[rank], LAYERS),
    ),
    "nemo-rl": (nemo_rl.trainer_layout(RANKS, 16), lambda rank: nemo_rl.rank_batch(nemo_batch(rank), LAYERS)),
    "skyrl": (skyrl.trainer_layout(RANKS), lambda rank: skyrl.rank_batch(skyrl_batches(rank), LAYERS)),
}


@pytest.fixture
def planner_client(shared_planner: Service) -> Iterator[PlannerClient]:
    with PlannerClient(shared_planner.address) as client:
        yield client


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_plan_holds_for_what_the_framework_replays(
    shared_planner: Service, planner_client: PlannerClient, framework: str
) -> None:
    trainer, batch_of = FRAMEWORKS[framework]
    job_id = f"integration-{framework}"
    planner_client.register_job(job_id, MODEL, CLUSTER)
    with RolloutReporter(shared_planner.address, job_id, num_experts=8) as reporter:
        ranks = [report_rank(reporter, 3, batch_of(rank), rank, trainer) for rank in range(2)]
    submit_step(planner_client, job_id, 3, ranks)
    plan = planner_client.fetch_plan(job_id, 3, MODEL, wait_s=60)
    check_step_plan(plan, MODEL, CLUSTER)
    assert len(plan.replica_index_Y4)
    # The test of each adapter compares these counts with the framework's own rows.
    source_MRLE = sum(trained_counts(batch_of(rank), rank, trainer) for rank in range(2))
    load = StepLoad.of_sources(np.ascontiguousarray(source_MRLE.swapaxes(1, 2)))
    loads_MLR = executed_loads(plan, load, CLUSTER)
    before = imbalance(home_loads(load.load_MLE, CLUSTER.identity_placement(MODEL), 4))
    assert f"imbalance falls from {before:.3f} to {imbalance(loads_MLR):.3f}" in plan.reason


def test_reporting_a_rank_again_changes_nothing(shared_planner: Service, planner_client: PlannerClient) -> None:
    trainer, batch_of = FRAMEWORKS["slime"]
    planner_client.register_job("integration-again", MODEL, CLUSTER)
    with RolloutReporter(shared_planner.address, "integration-again", num_experts=8) as reporter:
        first, again = (report_rank(reporter, 0, batch_of(0), 0, trainer) for _ in range(2))
    assert first.sequence_ids == again.sequence_ids
    with pytest.raises(InvalidInput, match="ranks: expected the schedule of at least one data-parallel rank"):
        submit_step(planner_client, "integration-again", 0, [])
    with pytest.raises(InvalidInput, match="twice"):
        submit_step(planner_client, "integration-again", 0, [first, again])


def test_S7_a_part_larger_than_the_buffer_is_refused_and_a_step_larger_than_it_is_not(
    shared_planner: Service, planner_client: PlannerClient
) -> None:
    trainer, batch_of = FRAMEWORKS["slime"]
    planner_client.register_job("integration-buffer", MODEL, CLUSTER)
    address = shared_planner.address
    with (
        RolloutReporter(address, "integration-buffer", num_experts=8, buffer_size_bytes=15) as reporter,
        pytest.raises(LimitExceeded, match=r"'rank-0/part-0' of step 0: 16 bytes .* raise its buffer_size_bytes"),
    ):
        report_rank(reporter, 0, batch_of(0), 0, trainer)
    with RolloutReporter(address, "integration-buffer", num_experts=8, buffer_size_bytes=16) as reporter:
        assert len(report_rank(reporter, 0, batch_of(0), 0, trainer).sequence_ids) == 8


def test_S9_a_refused_part_is_an_error_of_the_rank_that_reported_it(
    shared_planner: Service, planner_client: PlannerClient
) -> None:
    trainer, batch_of = FRAMEWORKS["slime"]
    planner_client.register_job("integration-refused", MODEL, CLUSTER)
    with RolloutReporter(shared_planner.address, "integration-refused", num_experts=8) as reporter:
        report_rank(reporter, 0, batch_of(0), 0, trainer)
        with pytest.raises(Conflict, match="'rank-0/part-0' of step 0"):
            report_rank(reporter, 0, RankBatch(routings=batch_of(1).routings, micro_batches=[[0, 1], [2]]), 0, trainer)
