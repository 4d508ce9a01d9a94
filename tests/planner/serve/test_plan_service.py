import threading
import time

import grpc
import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, count, eventually, report_sequences, routed_experts
from harness.step_samples import execution_report, published_plans
from relibra.errors import Conflict, InvalidInput, LimitExceeded, NotFound, NotReady, UnknownJob
from relibra.planning import Schedule, StepPlan, check_step_plan
from relibra.planning.plan import Level
from relibra.rollout import RolloutReporter
from relibra.store import Refused, Store
from relibra.v1 import plan_pb2, plan_pb2_grpc
from relibra.wire import array, messages
from relibra.wire.channel import MAX_PART_SIZE_BYTES, open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.status import from_rpc_error

SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)


@pytest.fixture
def ids(shared_planner: Service, job_id: str) -> list[str]:
    return report_sequences(shared_planner.address, job_id, 1)


def submit_raw(address: str, job_id: str, epoch: int, message: plan_pb2.Schedule) -> None:
    """Submit a schedule that the types of the client would refuse."""
    with open_channel(address) as channel:
        try:
            plan_pb2_grpc.PlanServiceStub(channel).SubmitSchedule(
                plan_pb2.SubmitScheduleRequest(job_id=job_id, epoch=epoch, step=1, schedule=message), timeout=60
            )
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


def assert_nothing_was_kept(client: PlannerClient, job_id: str) -> None:
    with pytest.raises(NotReady, match="waiting for its schedule"):
        client.fetch_plan(job_id, 1, MODEL)


def test_a_rank_gets_a_valid_plan(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    plan = client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    check_step_plan(plan, MODEL, CLUSTER)
    assert plan.num_micro_batches == 2
    assert plan.reason


def test_S6_jobs_with_the_same_steps_and_sequence_ids_do_not_touch_each_other(
    client: PlannerClient, shared_planner: Service, job_id: str, ids: list[str]
) -> None:
    other = f"{job_id[:40]}-other"
    client.register_job(other, MODEL, CLUSTER, PARAMS)
    with pytest.raises(NotFound, match="were never reported"):
        client.submit_schedule(other, 1, ids, SCHEDULE)
    with RolloutReporter(shared_planner.address, other, num_experts=MODEL.num_experts) as reporter:
        for sequence_id in ids:
            reporter.report(1, sequence_id, routed_experts(99, 7))
    one_micro_batch = Schedule.round_robin(8, 1, CLUSTER)
    client.submit_schedule(other, 1, ids, one_micro_batch)
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    plan, other_plan = (client.fetch_plan(each, 1, MODEL, wait_s=60) for each in (job_id, other))
    assert (plan.num_micro_batches, other_plan.num_micro_batches) == (2, 1)
    assert plan.id.epoch != other_plan.id.epoch
    assert plan.digest != other_plan.digest


def test_a_fetch_that_waits_gets_the_plan_when_it_is_published(
    client: PlannerClient, job_id: str, ids: list[str]
) -> None:
    plans: list[StepPlan] = []
    waiting = [
        threading.Thread(target=lambda rank=rank: plans.append(client.fetch_plan(job_id, 1, MODEL, wait_s=60)))
        for rank in range(CLUSTER.num_ranks)
    ]
    for each in waiting:
        each.start()
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    for each in waiting:
        each.join(timeout=120)
    assert len({plan.id for plan in plans}) == 1
    assert len(plans) == CLUSTER.num_ranks


def test_not_ready_says_what_it_is_waiting_for(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    started_at = time.monotonic()
    with pytest.raises(NotReady, match=r"step 1 has no plan yet: waiting for its schedule \(8 sequences reported"):
        client.fetch_plan(job_id, 1, MODEL, wait_s=0.3)
    assert time.monotonic() - started_at >= 0.3


def test_unknown_jobs_are_refused(client: PlannerClient) -> None:
    with pytest.raises(UnknownJob, match="'nobody'"):
        client.fetch_plan("nobody", 1, MODEL)
    with pytest.raises(UnknownJob, match="'nobody'"):
        client.submit_schedule("nobody", 1, ["seq"], Schedule.round_robin(1, 1, CLUSTER))


def test_a_sequence_that_is_trained_twice_is_scheduled_twice(
    client: PlannerClient, job_id: str, ids: list[str]
) -> None:
    assert client.submit_schedule(job_id, 1, [*ids[:7], "seq-0"], SCHEDULE) == 1
    assert client.fetch_plan(job_id, 1, MODEL, wait_s=60) is not None


def test_a_rollout_that_counts_no_steps_has_the_next_one_planned(
    client: PlannerClient, shared_planner: Service, job_id: str, ids: list[str]
) -> None:
    with RolloutReporter(shared_planner.address, job_id, num_experts=MODEL.num_experts) as reporter:
        for index in range(2):
            reporter.report(None, f"ahead-{index}", routed_experts(index, 5))
    assert client.claim_sequences(job_id, 1, ["ahead-1", "lost", *ids]) == [1]
    assert client.submit_schedule(job_id, None, ["ahead-1", "ahead-0"]) == 2, "step 1 has sequences"
    plan = client.fetch_plan(job_id, 2, MODEL, wait_s=60)
    assert plan is not None
    assert plan.level is Level.STEP
    with pytest.raises(NotFound, match=r"1 of 2 .* step 3 .*: 'lost'"):
        client.submit_schedule(job_id, None, ["ahead-0", "lost"])


def test_sequences_never_reported_are_counted_and_named(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    lost = ["lost-0", "lost-1", "lost-2", "lost-3"]
    with pytest.raises(NotFound, match=r"4 of 8 .* step 1 .*: 'lost-0', 'lost-1', 'lost-2', \.\.\."):
        client.submit_schedule(job_id, 1, [*ids[:4], *lost], SCHEDULE)
    with pytest.raises(NotFound, match=r"8 of 8 .* step 2"):
        client.submit_schedule(job_id, 2, ids, SCHEDULE)
    assert_nothing_was_kept(client, job_id)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("source_rank", 4, r"schedule.source_rank\[7\]: expected 0 to 3, got 4"),
        ("source_rank", -1, r"schedule.source_rank: expected at least 0, got -1"),
        ("ep_group", 1, r"schedule.ep_group\[7\]: expected 0 to 0, got 1"),
        ("micro_batch", 2**31 - 1, r"schedule.micro_batch: expected below 8, .* got 2147483647"),
    ],
)
def test_S7_ranks_groups_and_micro_batches_that_cannot_be_are_refused(
    client: PlannerClient, shared_planner: Service, job_id: str, ids: list[str], field: str, value: int, fault: str
) -> None:
    message = messages.encode_schedule(ids, SCHEDULE)
    values = np.zeros(8, dtype=np.int32)
    values[7] = value
    getattr(message, field).CopyFrom(array.encode(values))
    with pytest.raises(InvalidInput, match=fault):
        submit_raw(shared_planner.address, job_id, client.join_attempt(job_id), message)
    assert_nothing_was_kept(client, job_id)


def test_a_schedule_is_idempotent_and_the_first_one_stands(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    with pytest.raises(Conflict, match="another schedule"):
        client.submit_schedule(job_id, 1, ids, Schedule.round_robin(8, 4, CLUSTER))
    plan = client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    assert client.fetch_plan(job_id, 1, MODEL).id == plan.id


def test_S9_a_refused_schedule_is_remembered_until_one_is_accepted(
    client: PlannerClient, job_id: str, ids: list[str], shared_planner: Service, run: Loop
) -> None:
    store = Store.open(shared_planner.redis_url)
    with pytest.raises(NotFound):
        client.submit_schedule(job_id, 1, [*ids[:-1], "nobody"], SCHEDULE)
    (refusal,) = run(store.get_refusals(run(store.get_job(job_id))))
    assert (refusal.what, refusal.since_step, refusal.error) == (Refused.SCHEDULE, 1, "NotFound")
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    assert run(store.get_refusals(run(store.get_job(job_id)))) == []
    run(store.close())


def test_the_next_plan_starts_from_the_previous_placement(
    client: PlannerClient, shared_planner: Service, job_id: str, run: Loop
) -> None:
    """The second step has the load of the first, so all experts worth moving have been moved."""
    for step in (1, 2):
        ids = report_sequences(shared_planner.address, job_id, step)
        client.submit_schedule(job_id, step, ids, SCHEDULE)
        client.fetch_plan(job_id, step, MODEL, wait_s=60)
    store = Store.open(shared_planner.redis_url)
    first, second = run(published_plans(store, run(store.get_job(job_id))))
    run(store.close())
    assert first.prediction.num_moved_experts > 0
    assert second.prediction.num_moved_experts == 0


def test_64_agents_fetch_one_plan(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    digests: list[bytes] = []
    agents = [
        threading.Thread(target=lambda rank=rank: digests.append(client.fetch_plan(job_id, 1, MODEL, wait_s=60).digest))
        for rank in range(64)
    ]
    for each in agents:
        each.start()
    eventually(lambda: len(digests) == 64)
    assert len(set(digests)) == 1


def test_counts_of_the_harness_are_those_of_the_model() -> None:
    assert (count(routed_experts(0, 10)).sum(axis=1) == 10 * MODEL.top_k).all()


def test_S7_a_schedule_beyond_the_largest_message_comes_in_parts(client: PlannerClient, job_id: str) -> None:
    client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    names = [f"{index:0100}" for index in range(15_000)]
    schedule = Schedule.round_robin(len(names), 2, CLUSTER)
    assert sum(map(len, names)) > MAX_PART_SIZE_BYTES
    with pytest.raises(NotFound, match="15000 of 15000 scheduled sequences were never reported"):
        client.submit_schedule(job_id, 1, names, schedule)
    names = [f"{index:0180}" for index in range(100_000)]
    with pytest.raises(LimitExceeded, match="the message of SubmitSchedule may have 16777216 bytes, got"):
        client.submit_schedule(job_id, 2, names, Schedule.round_robin(len(names), 2, CLUSTER))


def test_a_step_of_which_the_sequences_are_known_is_planned_and_planned_again_with_its_micro_batches(
    client: PlannerClient, job_id: str, ids: list[str]
) -> None:
    client.submit_schedule(job_id, 1, ids)
    first = client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    assert first is not None
    assert (first.level, first.num_micro_batches) == (Level.STEP, 1)
    client.submit_schedule(job_id, 1, ids, SCHEDULE)
    second = client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    assert second is not None
    assert second.level is Level.MICRO_BATCHES
    assert second.id > first.id


def test_a_step_that_nobody_scheduled_gets_the_newest_plan_from_history_and_nobody_waits_for_it(
    client: PlannerClient, shared_planner: Service, job_id: str
) -> None:
    client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    assert client.fetch_plan(job_id, 1, MODEL, wait_s=60) is None
    rng = np.random.default_rng(0)
    load_NLE = rng.integers(1, 200, (4, MODEL.num_layers, MODEL.num_experts), dtype=np.uint8)
    for rank in range(CLUSTER.num_ranks):
        is_mine_E = np.arange(MODEL.num_experts) // (MODEL.num_experts // CLUSTER.num_ranks) == rank
        client.report_execution(job_id, execution_report(rank, step=1, expert_load_NLE=load_NLE * is_mine_E))
    plan = eventually(lambda: client.fetch_plan(job_id, 2, MODEL))
    assert (plan.step, plan.level) == (2, Level.HISTORY)
    assert client.fetch_plan(job_id, 7, MODEL, wait_s=60).id == plan.id
    ids = report_sequences(shared_planner.address, job_id, 7)
    with pytest.raises(NotReady, match="waiting for its schedule"):
        client.fetch_plan(job_id, 7, MODEL)
    client.submit_schedule(job_id, 7, ids, SCHEDULE)
    assert client.fetch_plan(job_id, 7, MODEL, wait_s=60).level is Level.MICRO_BATCHES
