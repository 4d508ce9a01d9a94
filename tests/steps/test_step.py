"""Batches shaped like the frameworks' go to a real planner; its plan is compared with what the rollout recorded."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from harness.framework_batches import LAYERS, nemo_batch, skyrl_batches, slime_rollout_data, verl_data
from harness.replicated import executed_loads
from harness.services import Service
from relibra.errors import Conflict, InvalidInput, LimitExceeded, NotFound
from relibra.planning import Cluster, Model, Schedule, StepLoad, check_step_plan, imbalance
from relibra.planning.load import home_loads
from relibra.planning.plan import Level
from relibra.plugins.nemo_rl import batch as nemo_rl
from relibra.plugins.skyrl import batch as skyrl
from relibra.plugins.slime import batch as slime
from relibra.plugins.verl import batch as verl
from relibra.rollout import RolloutReporter
from relibra.steps import RankBatch, RankSchedule, report_rank, submit_step
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

MODEL = Model(num_layers=2, num_experts=8, top_k=2)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)
INDICES = ([[2], [0, 3, 1]], [[1, 0], [3, 2]])
FRAMEWORKS: dict[str, Callable[[int], RankBatch]] = {
    "slime": lambda rank: slime.rank_batch(slime_rollout_data(rank), LAYERS),
    "verl": lambda rank: verl.rank_batch(verl_data(rank), [None] * 2, INDICES[rank], LAYERS),
    "nemo-rl": lambda rank: nemo_rl.rank_batch(nemo_batch(rank), LAYERS),
    "skyrl": lambda rank: skyrl.rank_batch(skyrl_batches(rank), LAYERS),
}
BATCH = FRAMEWORKS["slime"](0)
"""Three sequences."""


@pytest.fixture
def planner_client(shared_planner: Service) -> Iterator[PlannerClient]:
    with PlannerClient(shared_planner.address) as client:
        yield client


def report(reporter: RolloutReporter, step: int, batch: RankBatch, rank: int = 0) -> RankSchedule:
    """Report the batch of a data-parallel rank, each of which has an EP group for itself."""
    return report_rank(reporter, step, batch, f"rank-{rank}", ep_group=rank, ep_rank=1)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_plan_holds_for_what_the_framework_reports(
    shared_planner: Service, planner_client: PlannerClient, framework: str
) -> None:
    batches = [FRAMEWORKS[framework](rank) for rank in range(2)]
    job_id = f"integration-{framework}"
    planner_client.register_job(job_id, MODEL, CLUSTER)
    with RolloutReporter(shared_planner.address, job_id, num_experts=8) as reporter:
        ranks = [report(reporter, 3, batch, rank) for rank, batch in enumerate(batches)]
    submit_step(planner_client, job_id, 3, ranks)
    plan = planner_client.fetch_plan(job_id, 3, MODEL, wait_s=60)
    assert plan is not None
    assert plan.level is Level.MICRO_BATCHES
    check_step_plan(plan, MODEL, CLUSTER)
    assert plan.replicas.count_ML.any()
    counts_SLE = np.stack([routing.counts() for batch in batches for routing in batch.routings])
    places = [
        (micro_batch, rank, place)
        for rank, batch in enumerate(batches)
        for place in range(len(batch.routings))
        for micro_batch, sequences in enumerate(batch.micro_batches)
        if place in sequences
    ]
    micro_batch_S, ep_group_S, _ = np.array(places).T
    schedule = Schedule(micro_batch_S=micro_batch_S, source_rank_S=np.ones_like(micro_batch_S), ep_group_S=ep_group_S)
    load = StepLoad.of(counts_SLE, schedule, CLUSTER)
    before = imbalance(home_loads(load.load_MLE, CLUSTER.identity_placement(MODEL), 4))
    after = imbalance(executed_loads(plan, load, CLUSTER))
    assert f"imbalance falls from {before:.3f} to {after:.3f}" in plan.reason


def test_reporting_a_rank_again_changes_nothing(shared_planner: Service, planner_client: PlannerClient) -> None:
    planner_client.register_job("integration-again", MODEL, CLUSTER)
    with RolloutReporter(shared_planner.address, "integration-again", num_experts=8) as reporter:
        first, again = (report(reporter, 0, BATCH) for _ in range(2))
    assert first.sequence_ids == again.sequence_ids
    with pytest.raises(InvalidInput, match="ranks: expected the schedule of at least one data-parallel rank"):
        submit_step(planner_client, "integration-again", 0, [])
    with pytest.raises(InvalidInput, match="ranks: expected every rank once, got rank 1 of EP group 0 2 times"):
        submit_step(planner_client, "integration-again", 0, [first, again])


@pytest.mark.parametrize("framework", ["slime", "verl", "skyrl"])
def test_a_rank_reports_only_what_the_rollout_did_not(
    shared_planner: Service, planner_client: PlannerClient, framework: str
) -> None:
    batch, job_id = FRAMEWORKS[framework](0), f"integration-names-{framework}"
    planner_client.register_job(job_id, MODEL, CLUSTER)
    with RolloutReporter(shared_planner.address, job_id, num_experts=8) as reporter:
        for name, routing in list(zip(batch.names, batch.routings, strict=True))[1:]:
            reporter.report(None, name, routing.routed_TLK)
        reporter.flush()
        ranks = [
            report_rank(reporter, 0, batch, f"rank-{rank}", ep_group=0, ep_rank=rank, planner=planner_client)
            for rank in range(2)
        ]
    assert [rank.sequence_ids for rank in ranks] == [
        (f"rank-{rank}/sequence-0", *batch.names[1:]) for rank in range(2)
    ], "both ranks have samples with these tokens"
    submit_step(planner_client, job_id, 0, ranks)
    plan = planner_client.fetch_plan(job_id, 0, MODEL, wait_s=60)
    assert plan is not None
    assert plan.level is Level.MICRO_BATCHES


def test_a_sequence_whose_routing_nobody_has_reported_is_named_as_missing(
    shared_planner: Service, planner_client: PlannerClient
) -> None:
    planner_client.register_job("integration-lacking", MODEL, CLUSTER)
    names_alone = replace(BATCH, routings=[None] * 3)
    with RolloutReporter(shared_planner.address, "integration-lacking", num_experts=8) as reporter:
        for name, routing in zip(BATCH.names[1:], BATCH.routings[1:], strict=True):
            assert routing is not None
            reporter.report(None, name, routing.routed_TLK)
        reporter.flush(60.0)
        with pytest.raises(NotFound, match="the rollout did not report 1 of 3 sequences"):
            report_rank(reporter, 0, names_alone, "rank-0", ep_group=0, ep_rank=1, planner=planner_client)


def test_S7_a_sequence_larger_than_the_buffer_is_refused_and_a_step_larger_than_it_is_not(
    shared_planner: Service, planner_client: PlannerClient
) -> None:
    planner_client.register_job("integration-buffer", MODEL, CLUSTER)
    address = shared_planner.address
    with (
        RolloutReporter(address, "integration-buffer", num_experts=8, buffer_size_bytes=15) as reporter,
        pytest.raises(LimitExceeded, match=r"'rank-0/sequence-0' of step 0: 16 bytes .* raise its buffer_size_bytes"),
    ):
        report(reporter, 0, BATCH)
    with RolloutReporter(address, "integration-buffer", num_experts=8, buffer_size_bytes=16) as reporter:
        assert len(report(reporter, 0, BATCH).sequence_ids) == 3


def test_S9_a_refused_sequence_is_an_error_of_the_rank_that_reported_it(
    shared_planner: Service, planner_client: PlannerClient
) -> None:
    planner_client.register_job("integration-refused", MODEL, CLUSTER)
    with RolloutReporter(shared_planner.address, "integration-refused", num_experts=8) as reporter:
        report(reporter, 0, BATCH)
        with pytest.raises(Conflict, match="'rank-0/sequence-0' of step 0"):
            report(reporter, 0, FRAMEWORKS["slime"](1))


def test_a_batch_whose_sequences_are_not_in_one_micro_batch_is_refused() -> None:
    with RolloutReporter("127.0.0.1:1", "job", num_experts=8) as reporter:
        with pytest.raises(InvalidInput, match="routings: expected at least one sequence, got none"):
            report(reporter, 0, RankBatch(routings=[], micro_batches=[]))
        with pytest.raises(InvalidInput, match=r"micro_batches: expected each of sequences 0 to 2 once"):
            report(reporter, 0, RankBatch(routings=BATCH.routings, micro_batches=[[0, 1], [1]]))
