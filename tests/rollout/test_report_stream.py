"""The stream of a reporter against planners that die, drain or are full."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually, routed_experts
from relibra.errors import NotFound, TooManyCalls, Unavailable
from relibra.planning import Schedule
from relibra.rollout import RolloutReporter, report_stream
from relibra.store.keys import JobKeys
from relibra.v1 import job_pb2, job_pb2_grpc, routing_pb2, routing_pb2_grpc
from relibra.wire.client import PlannerClient
from relibra.wire.status import to_status


def reporter_of(address: str, job_id: str) -> RolloutReporter:
    return RolloutReporter(address, job_id, num_experts=MODEL.num_experts)


def test_L2_only_what_was_not_acknowledged_is_sent_to_a_planner_that_came_back(
    planner: Service, redis_url: str
) -> None:
    """The test deletes the acknowledged sequences from Redis; if the reporter sent them again, they would reappear."""
    with PlannerClient(planner.address) as client, Redis.from_url(redis_url) as redis:
        epoch = client.register_job("job", MODEL, CLUSTER, PARAMS)
        with reporter_of(planner.address, "job") as reporter:
            for index in range(20):
                reporter.report(1, f"early-{index}", routed_experts(index, 6))
            assert reporter.flush() == 20
            planner.kill()
            assert redis.delete(JobKeys("job").attempt(epoch).step(1, "counts")) == 1
            for index in range(20):
                reporter.report(1, f"late-{index}", routed_experts(index, 6))
            with pytest.raises(Unavailable, match="20 sequences were not acknowledged"):
                reporter.flush(timeout_s=0.2)
            planner.start()
            assert reporter.flush() == 20
        late = [f"late-{index}" for index in range(20)]
        with pytest.raises(NotFound, match=r"1 of 21 .* 'early-0'"):
            client.submit_schedule("job", 1, [*late, "early-0"], Schedule.round_robin(21, 1, CLUSTER))
        client.submit_schedule("job", 1, late, Schedule.round_robin(20, 1, CLUSTER))


def test_L2_sequences_in_flight_when_the_planner_dies_arrive_after_it_is_back(planner: Service, redis_url: str) -> None:
    with PlannerClient(planner.address) as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
        with reporter_of(planner.address, "job") as reporter:
            reporter.report(1, "first", routed_experts(0, 6))
            assert reporter.flush() == 1
            # A stopped planner accepts bytes but answers nothing.
            os.kill(planner.process.pid, signal.SIGSTOP)
            for index in range(20):
                reporter.report(1, f"seq-{index}", routed_experts(index, 6))
            with pytest.raises(Unavailable, match="20 sequences"):
                reporter.flush(timeout_s=0.2)
            planner.kill()
            planner.start()
            assert reporter.flush() == 20
        ids = ["first", *(f"seq-{index}" for index in range(20))]
        client.submit_schedule("job", 1, ids, Schedule.round_robin(21, 1, CLUSTER))


def test_L4_a_planner_that_drains_leaves_nothing_half_answered(planner: Service, redis_url: str) -> None:
    with PlannerClient(planner.address) as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
        with reporter_of(planner.address, "job") as reporter:
            for index in range(10):
                reporter.report(1, f"seq-{index}", routed_experts(index, 6))
            assert reporter.flush() == 10
            # The stream is open and idle; draining must end it instead of waiting for it.
            assert planner.stop() == 0
            eventually(lambda: "the planner is shutting down" in str(reporter.trouble))
            reporter.report(1, "seq-10", routed_experts(0, 6))
            planner.start()
            assert reporter.flush() == 1
        eventually(lambda: "planner drains" in planner.log())
        client.submit_schedule("job", 1, [f"seq-{index}" for index in range(11)], Schedule.round_robin(11, 1, CLUSTER))


class Jobs(job_pb2_grpc.JobServiceServicer):
    """A planner at which every launch has registered."""

    def JoinAttempt(self, request: Any, context: Any) -> Any:
        return job_pb2.JoinAttemptResponse(epoch=1, attempt=1)


class OneOfTwo(routing_pb2_grpc.RoutingServiceServicer):
    """One of two planners. The first one that a reporter comes to is full, and stays full."""

    full: "list[OneOfTwo]"

    def ReportRouting(self, requests: Any, context: Any) -> Any:
        if not self.full:
            self.full.append(self)
        if self in self.full:
            code, details, metadata = to_status(TooManyCalls("this planner has too many streams"))
            context.set_trailing_metadata(metadata)
            context.abort(code, details)
        yield routing_pb2.ReportRoutingResponse(credit_through=8)
        for request in requests:
            yield routing_pb2.ReportRoutingResponse(answered_through=request.ordinal, credit_through=8)


def test_S6_a_reporter_whose_planner_is_full_comes_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_stream, "_MAX_BACKOFF_S", 0.1)
    OneOfTwo.full = []
    with ExitStack() as stack:
        ports = []
        for _ in range(2):
            server = grpc.server(ThreadPoolExecutor(2))
            routing_pb2_grpc.add_RoutingServiceServicer_to_server(OneOfTwo(), server)
            job_pb2_grpc.add_JobServiceServicer_to_server(Jobs(), server)
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            server.start()
            stack.callback(server.stop, None)
        reporter = stack.enter_context(reporter_of(f"ipv4:127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}", "job"))
        reporter.report(1, "seq", routed_experts(0, 6))
        assert reporter.flush() == 1
    assert len(OneOfTwo.full) == 1
