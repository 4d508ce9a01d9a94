import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.step_plan_message import encode_step_plan
from relibra.errors import InvalidInput
from relibra.planning import (
    Cause,
    Cluster,
    CostModel,
    ExecutionReport,
    Model,
    Phase,
    PlanId,
    PlanParams,
    Replicas,
    Schedule,
    StepPlan,
)
from relibra.planning.plan import Level
from relibra.v1 import execution_pb2, job_pb2, plan_pb2
from relibra.wire import array, messages
from relibra.wire.launch import this_launch

MODEL = Model(num_layers=3, num_experts=8, top_k=2)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)


def same(left: object, right: object) -> bool:
    """Return whether two dataclasses are equal, comparing arrays by value."""
    return all(
        same(a, b)
        if dataclasses.is_dataclass(a := getattr(left, field.name))
        else np.array_equal(a, b)
        if isinstance(a, np.ndarray)
        else a == b
        for field in dataclasses.fields(left)  # type: ignore[arg-type]
        for b in [getattr(right, field.name)]
    )


@given(
    layers=st.integers(1, 100),
    shares=st.integers(1, 64),
    nodes=st.integers(1, 8),
    gpus=st.integers(1, 8),
    groups=st.integers(1, 4),
    size_bytes=st.integers(0, 2**40),
    seed=st.integers(0, 2**63),
    cost=st.sampled_from(
        [None, CostModel(sends_once_per_node=True), CostModel.of_expert(10**8, token_size_bytes=28_672)]
    ),
)
def test_registrations_survive_the_wire(
    layers: int, shares: int, nodes: int, gpus: int, groups: int, size_bytes: int, seed: int, cost: CostModel | None
) -> None:
    model = Model(
        num_layers=layers,
        num_experts=shares * nodes * gpus,
        top_k=1,
        expert_weight_size_bytes=size_bytes,
        expert_state_size_bytes=7 * size_bytes,
    )
    cluster = Cluster(num_nodes=nodes, gpus_per_node=gpus, redundant_slots=2, num_ep_groups=groups)
    params = PlanParams(seed=seed, min_tokens_per_replica=4, cost=cost, homes_stay=bool(seed % 2))
    data = messages.encode_registration("job", model, cluster, params, this_launch()).SerializeToString()
    assert messages.decode_registration(job_pb2.RegisterJobRequest.FromString(data)) == ("job", model, cluster, params)


def test_a_cost_model_out_of_range_is_refused() -> None:
    request = messages.encode_registration("job", MODEL, CLUSTER, PlanParams(cost=CostModel()), this_launch())
    request.params.cost.hidden_transfer_share = 2.0
    with pytest.raises(InvalidInput, match=r"cost.hidden_transfer_share: expected 0 to 1, got 2.0"):
        messages.decode_registration(request)


def test_ranks_that_do_not_divide_the_experts_are_refused() -> None:
    request = messages.encode_registration(
        "job", dataclasses.replace(MODEL, num_experts=6), CLUSTER, PlanParams(), this_launch()
    )
    with pytest.raises(InvalidInput, match=r"model.num_experts: expected a multiple of the 4 EP ranks .* got 6"):
        messages.decode_registration(request)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=20))
def test_schedules_survive_the_wire(rows: list[tuple[int, int, int]]) -> None:
    micro_batch_S, source_rank_S, ep_group_S = np.array(rows, dtype=np.int32).T
    schedule = Schedule(micro_batch_S=micro_batch_S, source_rank_S=source_rank_S, ep_group_S=ep_group_S)
    ids = [f"s{index}" for index in range(len(rows))]
    data = messages.encode_schedule(ids, schedule).SerializeToString()
    decoded_ids, decoded = messages.decode_schedule(plan_pb2.Schedule.FromString(data), CLUSTER)
    assert decoded_ids == ids
    assert same(decoded, schedule)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("micro_batch", np.array([0, -1], dtype=np.int32), r"schedule.micro_batch: expected at least 0, got -1"),
        ("source_rank", np.array([0, 4], dtype=np.int32), r"schedule.source_rank\[1\]: expected 0 to 3, got 4"),
        ("ep_group", np.array([2, 0], dtype=np.int32), r"schedule.ep_group\[0\]: expected 0 to 1, got 2"),
        ("source_rank", np.array([0], dtype=np.int32), r"schedule.source_rank.shape: expected \[2\], got \[1\]"),
        ("source_rank", np.array([0.0, 1.0]), r"schedule.source_rank.dtype"),
        ("source_rank", np.array([0, 2**32], dtype=np.int64), r"schedule.source_rank: expected at most 2147483647"),
        ("source_rank", np.array([0, 2**32 - 1], dtype=np.uint32), r"schedule.source_rank: expected at most"),
    ],
)
def test_bad_schedules_are_refused_by_name(field: str, value: np.ndarray, fault: str) -> None:
    message = messages.encode_schedule(["a", "b"], Schedule.round_robin(2, 2, CLUSTER))
    getattr(message, field).CopyFrom(array.encode(value))
    with pytest.raises(InvalidInput, match=fault):
        messages.decode_schedule(message, CLUSTER)


@pytest.mark.parametrize("level", list(Level))
def test_step_plans_survive_the_wire(level: Level) -> None:
    plan = StepPlan(
        id=PlanId(epoch=2**63 - 1, version=7),
        step=5,
        digest=bytes(range(32)),
        home_rank_LE=CLUSTER.identity_placement(MODEL),
        replicas=Replicas.of(np.array([[0, 1, 2, 0], [3, 2, 7, 2]], dtype=np.int32), 4, 3),
        num_micro_batches=2,
        reason="two replicas",
        level=level,
        expected_gain=0.25,
    )
    data = encode_step_plan(plan).SerializeToString()
    assert same(messages.decode_step_plan(plan_pb2.StepPlan.FromString(data), MODEL), plan)
    with pytest.raises(InvalidInput, match=r"plan.home_rank.shape"):
        messages.decode_step_plan(plan_pb2.StepPlan.FromString(data), dataclasses.replace(MODEL, num_layers=2))


def test_a_level_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"plan.level: expected micro-batches, step or history \(0 to 2\), got 3"):
        messages.decode_level(3)


@pytest.mark.parametrize("applied", [None, PlanId(epoch=2**63 - 1, version=1)])
@pytest.mark.parametrize("phase", list(Phase))
def test_execution_reports_survive_the_wire(applied: PlanId | None, phase: Phase) -> None:
    report = ExecutionReport(
        step=5,
        phase=phase,
        ep_group=1,
        ep_rank=3,
        applied=applied,
        reason="as planned",
        causes=() if applied else tuple(Cause),
        realised_load_ML=np.array([[1, 2, 2**40]], dtype=np.int64),
        expert_load_NLE=np.arange(4 * 3 * 8, dtype=np.uint8).reshape(4, 3, 8),
        reorder_sent_bytes=2**40,
        replica_sent_bytes=1,
        plan_wait_s=0.5,
        reorder_s=0.25,
        replica_wait_s=0.125,
        duration_s=8.5,
        num_processes=4,
    )
    data = messages.encode_execution_report("job", report).SerializeToString()
    request = execution_pb2.ReportExecutionRequest.FromString(data)
    assert same(messages.decode_execution_report(request, MODEL, CLUSTER), report)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"phase": execution_pb2.PHASE_UNSPECIFIED}, "phase: expected recompute or update"),
        ({"ep_rank": 4}, "ep_rank: expected 0 to 3, got 4"),
        ({"ep_group": 2}, "ep_group: expected 0 to 1, got 2"),
        ({"plan_wait_s": math.nan}, "plan_wait_s: expected seconds, at least 0, got nan"),
        ({"reorder_s": -1.0}, "reorder_s: expected seconds"),
        ({"replica_wait_s": math.inf}, "replica_wait_s: expected seconds"),
        ({"duration_s": -math.inf}, "duration_s: expected seconds"),
        ({"num_processes": 65537}, "num_processes: expected 1 to 65536, got 65537"),
        (
            {"applied": plan_pb2.PlanId(epoch=1, version=1), "causes": [execution_pb2.CAUSE_LATE]},
            r"causes: expected none where a plan was applied, got \[1\]",
        ),
    ],
)
def test_bad_execution_reports_are_refused_by_name(change: dict[str, object], fault: str) -> None:
    fields = {"phase": execution_pb2.PHASE_UPDATE, "num_processes": 1} | change
    request = execution_pb2.ReportExecutionRequest(
        **fields,  # type: ignore[arg-type]
        realised_load=array.encode(np.zeros((1, 3), dtype=np.int64)),
    )
    with pytest.raises(InvalidInput, match=fault):
        messages.decode_execution_report(request, MODEL, CLUSTER)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ([], ()),
        ([execution_pb2.CAUSE_UNSPECIFIED], (Cause.UNSPECIFIED,)),
        ([1000, execution_pb2.CAUSE_LATE, 1001], (Cause.UNSPECIFIED, Cause.LATE)),
        ([execution_pb2.CAUSE_STALE] * 1000, (Cause.STALE,)),
    ],
)
def test_causes_of_another_version_are_unspecified_and_each_counts_once(sent: list[int], read: tuple[Cause]) -> None:
    request = execution_pb2.ReportExecutionRequest(
        phase=execution_pb2.PHASE_UPDATE,
        num_processes=1,
        realised_load=array.encode(np.zeros((1, 3), dtype=np.int64)),
        causes=sent,  # type: ignore[arg-type]
    )
    received = execution_pb2.ReportExecutionRequest.FromString(request.SerializeToString())
    assert messages.decode_execution_report(received, MODEL, CLUSTER).causes == read


def test_S7_replica_counts_whose_sum_wraps_around_are_refused() -> None:
    half = np.iinfo(np.int64).max
    message = plan_pb2.StepPlan(
        home_rank=array.encode(CLUSTER.identity_placement(MODEL)),
        replica_count=array.encode(np.array([[half, half, 2]])),
        **{name: array.encode(np.zeros(0, np.int32)) for name in ("replica_expert", "replica_rank")},
    )
    with pytest.raises(InvalidInput, match=r"plan.replica_count: expected a sum of 0"):
        messages.decode_step_plan(message, MODEL)
