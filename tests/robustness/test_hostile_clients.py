"""Clients that mean harm, without a token or with the token of another job: the others are served as before."""

import contextlib
import time

import grpc
import pytest

from harness.robustness.raw_http2 import RawConnection
from harness.robustness.world import Planner, World, figure, is_serving, resident_kib, take_step
from harness.services import CLUSTER, MODEL, PARAMS, Loop, count, eventually, routed_experts
from relibra.errors import InvalidInput, LimitExceeded
from relibra.planner.step_watch import LOOK_INTERVAL_S
from relibra.planning import CostModel, PlanParams, Schedule
from relibra.store import Role, Store
from relibra.v1 import plan_pb2, plan_pb2_grpc
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials
from relibra.wire.routing import encode_sequence, open_stream

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

MAX_GROWTH_KIB = 128 << 10
MAX_REFUSAL_LENGTH = 2000
MAX_LOGGED_LENGTH = 4000
NUM_WAITING = 500


@pytest.fixture
def attacker(world: World, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """The credentials of job `attacker`; all other clients have those of job `victim`."""

    async def create() -> list[str]:
        async with Store.open(world.redis.url) as store:
            return [(await store.create_token(job_id, Role.TRAINER))[1] for job_id in ("victim", "attacker")]

    with Loop() as run:
        victim, attacker = run(create())
    monkeypatch.setenv("RELIBRA_TOKEN", victim)
    return Credentials(token=attacker)


def guarded_planner(world: World, **environment: str) -> Planner:
    return world.start_planner(RELIBRA_AUTH="required", **environment)


def register(planner: Planner, attacker: Credentials) -> None:
    with PlannerClient(planner.address, credentials=attacker) as client:
        client.register_job("attacker", MODEL, CLUSTER, PARAMS)


def test_S7_a_shape_of_millions_of_extents_is_refused_in_a_few_words(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world)
    take_step(planner, 1, "victim")
    register(planner, attacker)
    request = encode_sequence(1, "attacker", 1, "seq", 6, count(routed_experts(0, 6)))
    request.counts.shape.extend([1] * (10 << 20))
    with (
        world.fault("an array with ten million extents", "S6 S7") as clock,
        open_channel(planner.address, attacker) as channel,
    ):
        before_kib, logged = resident_kib(planner.process.pid), len(planner.log())
        try:
            *_, last = open_stream(channel, iter([request]))
            (refusal,) = last.refused
            told = refusal.message
        except grpc.RpcError as error:
            told = error.details()
        assert len(told) <= MAX_REFUSAL_LENGTH + 100
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()
        assert len(planner.log()) - logged < MAX_LOGGED_LENGTH
        clock.figures = f"{(resident_kib(planner.process.pid) - before_kib) >> 10} MiB more"
        assert resident_kib(planner.process.pid) - before_kib < 2 * MAX_GROWTH_KIB, clock.figures


@pytest.mark.parametrize("auth", ["required", "none"])
@pytest.mark.parametrize("path", ["/relibra.v1.PlanService/FetchPlan", "/grpc.health.v1.Health/Watch"])
def test_S6_eight_thousand_calls_without_a_message_shut_nobody_out(
    world: World, attacker: Credentials, path: str, auth: str
) -> None:
    planner = world.start_planner(RELIBRA_AUTH=auth)
    take_step(planner, 1, "victim")
    with world.fault("8448 calls of headers only, no token", "S6") as clock, contextlib.ExitStack() as stack:
        for _ in range(33):
            connection = stack.enter_context(RawConnection(planner.address))
            for _ in range(256):
                connection.call(path)
            connection.receive(timeout_s=1.0)
        assert is_serving(planner)
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()


@pytest.mark.parametrize("has_token", [False, True])
def test_S7_messages_without_an_end_take_no_memory(world: World, attacker: Credentials, has_token: bool) -> None:
    planner = guarded_planner(world)
    take_step(planner, 1, "victim")
    with world.fault("24 messages of 1 MiB that lack their end", "S6 S7") as clock, contextlib.ExitStack() as stack:
        before_kib = resident_kib(planner.process.pid)
        connections = [stack.enter_context(RawConnection(planner.address)) for _ in range(24)]
        for each in connections:
            stream = each.call("/relibra.v1.PlanService/SubmitSchedule", attacker.token if has_token else None)
            each.send_part(stream, (1 << 20) - 64, (1 << 20) - 32)
        clock.figures = f"{(resident_kib(planner.process.pid) - before_kib) >> 10} MiB more"
        assert resident_kib(planner.process.pid) - before_kib < MAX_GROWTH_KIB, clock.figures
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()
        # The planner ends each of these calls by itself.
        for each in connections:
            eventually(lambda each=each: each.ended or (not each.receive(timeout_s=1.0) and each.ended))


def test_S6_agents_that_wait_for_one_step_look_together(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world, RELIBRA_METRICS_PORT="0")
    take_step(planner, 1, "victim")
    register(planner, attacker)
    with (
        world.fault(f"{NUM_WAITING} agents wait for a step that never comes", "S6") as clock,
        contextlib.ExitStack() as stack,
        world.redis.client() as redis,
    ):

        def num_looks() -> int:
            return int(redis.info("commandstats")["cmdstat_hlen"]["calls"])

        def looks_while_taking(steps: range, at_least_s: float) -> tuple[int, float]:
            """Return how often planners looked at a step, and for how many seconds this function watched."""
            before, started_at = num_looks(), time.monotonic()
            for step in steps:
                take_step(planner, step, "victim")
            clock.stop()
            eventually(lambda: time.monotonic() - started_at >= at_least_s)
            return num_looks() - before, time.monotonic() - started_at

        # The steps of the victim look too, and a fast machine takes more of them per second.
        num_quiet, _ = looks_while_taking(range(2, 8), at_least_s=0)
        request = plan_pb2.FetchPlanRequest(job_id="attacker", step=9, wait_ms=60_000)
        waiting = []
        for _ in range(4):
            stub = plan_pb2_grpc.PlanServiceStub(stack.enter_context(open_channel(planner.address, attacker)))
            waiting += [stub.FetchPlan.future(request, timeout=600) for _ in range(NUM_WAITING // 4)]
        eventually(lambda: figure(planner, "relibra_planner_open_calls") >= NUM_WAITING)
        clock.restart()
        num_beside, watched_s = looks_while_taking(range(8, 14), at_least_s=8 * LOOK_INTERVAL_S)
        added_per_s = (num_beside - num_quiet) / watched_s
        clock.figures = f"{added_per_s:.0f} looks per second more"
        # The watch of the awaited step looks once per interval; one look per agent would be 2000 per second.
        assert added_per_s < NUM_WAITING / 10, clock.figures
        ended = {(each.code(), each.details()) for each in waiting if each.done()}
        assert {code for code, _ in ended} <= {grpc.StatusCode.FAILED_PRECONDITION}, ended
        for each in waiting:
            each.cancel()


def test_S7_a_step_holds_so_many_sequences_and_is_planned_from_those_scheduled(
    world: World, attacker: Credentials
) -> None:
    planner = guarded_planner(world, RELIBRA_MAX_SEQUENCES="100")
    register(planner, attacker)
    counts_LE = count(routed_experts(0, 6))
    with world.fault("a job reports sequences without end", "S6 S7") as clock, world.redis.client() as redis:
        with open_channel(planner.address, attacker) as channel:
            requests = [encode_sequence(1 + index, "attacker", 1, f"s{index}", 6, counts_LE) for index in range(120)]
            refused = [each for answer in open_stream(channel, iter(requests)) for each in answer.refused]
        assert [each.ordinal for each in refused] == list(range(101, 121))
        assert {each.error for each in refused} == {"LimitExceeded"}
        assert "may have 100 sequences (max_sequences)" in refused[0].message
        clock.restart()
        with PlannerClient(planner.address, credentials=attacker, timeout_s=30) as client:
            redis.config_resetstat()
            client.submit_schedule("attacker", 1, ["s7", "s3"], Schedule.round_robin(2, 1, CLUSTER))
            client.fetch_plan("attacker", 1, MODEL, 0, wait_s=60)
            # The size of the hash of all reports must not matter: it was read whole, and Redis stood still meanwhile.
            assert "cmdstat_hkeys" not in redis.info("commandstats")
            ids = [f"s{index}" for index in range(101)]
            with pytest.raises(LimitExceeded, match=r"100 sequences \(max_sequences\), got 101"):
                client.submit_schedule("attacker", 2, ids, Schedule.round_robin(101, 1, CLUSTER))
        take_step(planner, 1, "victim")
        clock.stop()


def test_S7_a_cost_model_of_many_points_is_refused(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world)
    for num_points in (1_000, 400_000):
        points = tuple(map(float, range(num_points)))
        params = PlanParams(cost=CostModel(expert_tokens=points, expert_us=points))
        with (
            PlannerClient(planner.address, credentials=attacker, timeout_s=30) as client,
            pytest.raises((InvalidInput, LimitExceeded), match=r"at most 256 points|may have 262144 bytes"),
        ):
            client.register_job("attacker", MODEL, CLUSTER, params)


@pytest.mark.parametrize("size_bytes", [1 << 20, 15 << 20])
def test_S7_job_ids_of_megabytes_are_not_kept(world: World, size_bytes: int) -> None:
    planner = world.start_planner()
    take_step(planner, 1, "victim")
    with world.fault(f"20 streams with job ids of {size_bytes >> 20} MiB", "S7") as clock:
        before_kib = resident_kib(planner.process.pid)
        with open_channel(planner.address) as channel:
            for index in range(20):
                request = encode_sequence(1, f"{index}" * (size_bytes // 2), 1, "seq", 6, count(routed_experts(0, 6)))
                with pytest.raises(grpc.RpcError) as caught:
                    list(open_stream(channel, iter([request])))
                assert caught.value.code() in (
                    grpc.StatusCode.INVALID_ARGUMENT,
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                ), caught.value.code()
        assert resident_kib(planner.process.pid) - before_kib < MAX_GROWTH_KIB
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()
