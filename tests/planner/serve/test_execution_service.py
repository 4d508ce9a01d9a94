import dataclasses

import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, report_sequences
from relibra.errors import InvalidInput, LimitExceeded, UnknownJob
from relibra.planning import ExecutionReport, Phase, PlanId
from relibra.planning.execution import MAX_SAMPLED
from relibra.store import Store
from relibra.v1 import array_pb2, execution_pb2
from relibra.wire.client import PlannerClient
from relibra.wire.messages import decode_execution_report

REPORT = ExecutionReport(
    step=1,
    phase=Phase.UPDATE,
    ep_group=0,
    ep_rank=3,
    applied=PlanId(epoch=1, version=1),
    reason="as planned",
    realised_load_ML=np.ones((2, 3), dtype=np.int64),
    reorder_sent_bytes=0,
    replica_sent_bytes=0,
    plan_wait_s=0.0,
)


def test_a_report_is_taken_and_may_be_repeated(
    client: PlannerClient, job_id: str, shared_planner: Service, run: Loop
) -> None:
    report_sequences(shared_planner.address, job_id, REPORT.step)
    client.report_execution(job_id, dataclasses.replace(REPORT, reason="an earlier word", applied=None))
    for _ in range(2):
        client.report_execution(job_id, REPORT)
    store = Store.open(shared_planner.redis_url)
    (kept,) = run(store.get_reports(run(store.get_job(job_id)), REPORT.step))
    run(store.close())
    assert kept.realised_load_ML.tolist() == REPORT.realised_load_ML.tolist()
    loads = {name: getattr(REPORT, name) for name in ("realised_load_ML", "expert_load_NLE")}
    assert dataclasses.replace(kept, **loads) == REPORT


def test_S7_a_report_has_the_load_of_experts_in_a_few_micro_batches(client: PlannerClient, job_id: str) -> None:
    load_NLE = np.ones((MAX_SAMPLED + 1, MODEL.num_layers, MODEL.num_experts), dtype=np.uint8)
    client.report_execution(job_id, dataclasses.replace(REPORT, expert_load_NLE=load_NLE[1:]))
    with pytest.raises(InvalidInput, match="expert_load: expected at most 4 micro-batches, got 5"):
        client.report_execution(job_id, dataclasses.replace(REPORT, expert_load_NLE=load_NLE))


def test_S7_more_cells_than_a_step_may_have_are_refused(client: PlannerClient, job_id: str) -> None:
    report = dataclasses.replace(REPORT, realised_load_ML=np.ones(((1 << 16) // 3 + 1, 3), dtype=np.int64))
    with pytest.raises(LimitExceeded, match="max_cells"):
        client.report_execution(job_id, report)


def test_S7_each_of_many_ep_groups_reports_its_share_of_the_cells_of_a_step(client: PlannerClient, job_id: str) -> None:
    groups = 1 << 8
    client.register_job(f"{job_id}-groups", MODEL, dataclasses.replace(CLUSTER, num_ep_groups=groups), PARAMS)
    fitting = (1 << 16) // MODEL.num_layers // groups
    for num_micro_batches in (fitting, fitting + 1):
        report = dataclasses.replace(REPORT, realised_load_ML=np.ones((num_micro_batches, 3), dtype=np.int64))
        if num_micro_batches == fitting:
            client.report_execution(f"{job_id}-groups", report)
        else:
            with pytest.raises(LimitExceeded, match="max_cells"):
                client.report_execution(f"{job_id}-groups", report)


def test_S9_the_number_of_layers_counts_once_into_the_cells_of_a_report(client: PlannerClient, job_id: str) -> None:
    # Qwen3-235B on 64 GPUs: 4 micro-batches x 8 groups x 94 layers are 3008 cells.
    model, cluster = dataclasses.replace(MODEL, num_layers=94), dataclasses.replace(CLUSTER, num_ep_groups=8)
    client.register_job(f"{job_id}-layers", model, cluster, PARAMS)
    client.report_execution(
        f"{job_id}-layers", dataclasses.replace(REPORT, realised_load_ML=np.ones((4, 94), dtype=np.int64))
    )


@pytest.mark.parametrize("shape", [[2, 1 << 20], [2, 3, 1 << 20], [1], []])
def test_S7_a_load_of_another_shape_is_refused_before_it_is_inflated(shape: list[int]) -> None:
    load = array_pb2.Array(dtype="D_TYPE_INT64", shape=shape, data=b"no stream at all", deflated=True)
    request = execution_pb2.ReportExecutionRequest(step=1, realised_load=load, phase="PHASE_UPDATE", num_processes=1)
    with pytest.raises(InvalidInput, match=r"realised_load.shape: expected \[any, 3\]"):
        decode_execution_report(request, MODEL, CLUSTER)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ep_rank": CLUSTER.num_ranks}, "ep_rank: expected 0 to 3, got 4"),
        ({"ep_group": 1}, "ep_group: expected 0 to 0, got 1"),
        (
            {"realised_load_ML": np.ones((2, 4), dtype=np.int64)},
            r"realised_load.shape: expected \[any, 3\], got \[2, 4\]",
        ),
        ({"step": 2**60}, "step: expected at most"),
        ({"realised_load_ML": np.full((2, 3), -1)}, "realised_load: expected token copies, at least 0, got -1"),
    ],
)
def test_bad_reports_are_refused_by_name(
    client: PlannerClient, job_id: str, change: dict[str, object], fault: str
) -> None:
    with pytest.raises(InvalidInput, match=fault):
        client.report_execution(job_id, dataclasses.replace(REPORT, **change))


def test_a_report_of_an_unknown_job_is_refused(client: PlannerClient) -> None:
    with pytest.raises(UnknownJob, match="'nobody'"):
        client.report_execution("nobody", REPORT)
