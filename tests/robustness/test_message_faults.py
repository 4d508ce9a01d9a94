"""Clients that are slow, dead, greedy, or that send nonsense."""

import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc
import pytest

from harness.reports import report_one
from harness.robustness.world import PATIENT_S, World, figure, resident_kib, take_step
from harness.services import CLUSTER, MODEL, PARAMS, count, eventually, report_sequences, routed_experts
from relibra.errors import NotReady, RelibraError
from relibra.store.address import MAX_CONNECTIONS
from relibra.v1 import routing_pb2
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.routing import open_stream

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

COUNTS_LE = count(routed_experts(0, 6))
METHODS = (
    "JobService/RegisterJob",
    "PlanService/SubmitSchedule",
    "PlanService/Pack",
    "PlanService/FetchPlan",
    "ExecutionService/ReportExecution",
)
MAX_GROWTH_KIB = 64 << 10


def call_raw(channel: grpc.Channel, method: str, data: bytes) -> grpc.StatusCode:
    try:
        channel.unary_unary(f"/relibra.v1.{method}")(data, timeout=PATIENT_S)
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_S7_random_truncated_and_oversize_messages_are_refused(world: World, round_number: int) -> None:
    planner = world.start_planner()
    expected = take_step(planner, 1, "undisturbed")
    rng = Random(round_number)
    with (
        world.fault("random, truncated and oversize messages", "S6 S7 S8") as clock,
        open_channel(planner.address) as channel,
    ):
        good = report_one(1, "job", 1, "seq", 6, COUNTS_LE).SerializeToString()
        codes = set()
        for _ in range(50):
            for method in METHODS:
                codes.add(call_raw(channel, method, rng.randbytes(rng.randrange(200))))
                codes.add(call_raw(channel, method, good[: rng.randrange(len(good))]))
        assert grpc.StatusCode.OK not in codes
        assert codes <= {
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
            grpc.StatusCode.FAILED_PRECONDITION,
        }, codes
        before_kib = resident_kib(planner.process.pid)
        stream = channel.stream_stream("/relibra.v1.RoutingService/ReportRouting")
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(iter([bytes(65 << 20)]), timeout=PATIENT_S))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert resident_kib(planner.process.pid) - before_kib < MAX_GROWTH_KIB
        clock.restart()
        assert take_step(planner, 1).digest == expected.digest
        clock.stop()


@pytest.mark.long
def test_S8_duplicated_and_reordered_reports_change_nothing(world: World, round_number: int) -> None:
    planner = world.start_planner()
    expected = take_step(planner, 1, "undisturbed")
    with world.fault("every report four times, in any order, over two streams", "S3 S8 L3") as clock:
        with PlannerClient(planner.address) as client:
            epoch = client.register_job("job", MODEL, CLUSTER, PARAMS)
        order = [index for index in range(8) for _ in range(4)]
        Random(round_number).shuffle(order)
        with open_channel(planner.address) as channel:
            for half in (order[:16], order[16:]):
                requests = [
                    report_one(
                        ordinal,
                        "job",
                        1,
                        f"seq-{index}",
                        5 + index,
                        count(routed_experts(index, 5 + index)),
                        epoch=epoch,
                    )
                    for ordinal, index in enumerate(half, start=1)
                ]
                *_, last = open_stream(channel, iter(requests))
                assert last.answered_through == 16
                assert not last.refused
        clock.restart()
        assert take_step(planner, 1).digest == expected.digest
        clock.stop()


@pytest.mark.long
def test_S6_S7_a_client_that_never_reads_its_answers_is_held_back(world: World) -> None:
    planner = world.start_planner()
    expected = take_step(planner, 1, "undisturbed")
    with (
        world.fault("a client sends for ever and never reads", "S6 S7") as clock,
        open_channel(planner.address) as channel,
        PlannerClient(planner.address) as client,
    ):
        client.register_job("deaf", MODEL, CLUSTER, PARAMS)
        num_sent, stop = 0, threading.Event()

        def flood() -> Iterator[routing_pb2.ReportRoutingRequest]:
            nonlocal num_sent
            # Refused sequences, because their answers are long.
            request = report_one(1, "x" * 64, 1, "s" * 200, 6, COUNTS_LE)
            while not stop.is_set():
                num_sent += 1
                request.ordinal = num_sent
                yield request

        before_kib = resident_kib(planner.process.pid)
        call = open_stream(channel, flood())
        eventually(lambda: num_sent > 2000)
        assert take_step(planner, 1).digest == expected.digest
        assert resident_kib(planner.process.pid) - before_kib < MAX_GROWTH_KIB
        stop.set()
        call.cancel()
        clock.restart()
        take_step(planner, 2)
        clock.stop()


@pytest.mark.long
def test_L1_L2_a_planner_out_of_file_descriptors_recovers(world: World) -> None:
    planner = world.start_planner()
    take_step(planner, 1)
    with world.fault("planner is out of file descriptors, then is not", "L1 L2") as clock:
        used = len(list(Path(f"/proc/{planner.process.pid}/fd").iterdir()))
        soft, hard = resource.prlimit(planner.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(planner.process.pid, resource.RLIMIT_NOFILE, (used + 2, hard))
        channels = [
            grpc.insecure_channel(planner.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(20)
        ]
        calls = [channel.unary_unary(f"/relibra.v1.{METHODS[2]}").future(b"", timeout=2) for channel in channels]
        codes = {call.code() for call in calls}
        assert {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED} & codes, codes
        for channel in channels:
            channel.close()
        resource.prlimit(planner.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        clock.restart()
        assert take_step(planner, 2).id.version == 2
        clock.stop()


@pytest.mark.long
def test_S7_dead_clients_leave_nothing_behind(world: World) -> None:
    planner = world.start_planner(RELIBRA_METRICS_PORT="0")
    take_step(planner, 1)
    report_sequences(planner.address, "job", 9)  # so that agents wait for its schedule
    with world.fault("200 waiting agents hang up", "S7 L2") as clock, world.redis.client() as redis:

        def num_connections() -> int:
            """Return the number of connections to Redis, of the planner, the Sentinels and this test."""
            return len(redis.client_list(_type="normal"))

        def wait(client: PlannerClient) -> None:
            with pytest.raises((RelibraError, ValueError)) as caught:
                client.fetch_plan("job", 9, MODEL, wait_s=PATIENT_S)
            assert not isinstance(caught.value, NotReady)

        files = Path(f"/proc/{planner.process.pid}/fd")
        num_files, num_others = len(list(files.iterdir())), num_connections()
        for _ in range(3):
            clients = [PlannerClient(planner.address, timeout_s=PATIENT_S) for _ in range(20)]
            waiting = [threading.Thread(target=wait, args=(client,)) for client in clients for _ in range(10)]
            for each in waiting:
                each.start()
            eventually(lambda: figure(planner, "relibra_planner_open_calls") >= 200)
            assert num_connections() <= num_others + MAX_CONNECTIONS
            for client in clients:
                client.close()
            for each in waiting:
                each.join(timeout=PATIENT_S)
        clock.restart()
        assert take_step(planner, 2).id.version == 2
        clock.stop()
        eventually(lambda: len(list(files.iterdir())) <= num_files + MAX_CONNECTIONS)
        clock.figures = f"{num_connections() - num_others} more connections to Redis, {MAX_CONNECTIONS} allowed"
