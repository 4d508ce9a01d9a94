"""A rank's membership in an attempt, with a gRPC server on a real socket whose answers the test scripts."""

import logging
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from relibra.agent.plans.membership import Membership
from relibra.errors import NotReady, RelibraError, RolledBack, StaleEpoch
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.client import PlannerClient
from relibra.wire.status import to_status

OVER = StaleEpoch("attempt 1 of job 'job' is over: attempt 2 began at 12:03:00 UTC on host-b:99")


class Jobs(job_pb2_grpc.JobServiceServicer):
    """Answers with `epoch`, or raises `error`."""

    def __init__(self) -> None:
        self.asked: list[job_pb2.JoinAttemptRequest] = []
        self.epoch = 7
        self.error: RelibraError | None = None

    def JoinAttempt(self, request: job_pb2.JoinAttemptRequest, context: grpc.ServicerContext) -> Any:
        self.asked.append(request)
        if self.error is not None:
            code, details, metadata = to_status(self.error)
            context.set_trailing_metadata(metadata)
            context.abort(code, details)
        return job_pb2.JoinAttemptResponse(epoch=self.epoch, attempt=1)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def server() -> Iterator[grpc.Server]:
    server = grpc.server(ThreadPoolExecutor(2))
    yield server
    server.stop(grace=None).wait()


@pytest.fixture
def client(server: grpc.Server) -> Iterator[PlannerClient]:
    port = server.add_insecure_port("127.0.0.1:0")
    with PlannerClient(f"127.0.0.1:{port}", attempt="token") as client:
        yield client


@pytest.fixture
def jobs(server: grpc.Server, client: PlannerClient) -> Jobs:
    jobs = Jobs()
    job_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
    server.start()
    return jobs


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def member(clock: Clock) -> Membership:
    return Membership("job", clock)


def join(member: Membership, client: PlannerClient) -> None:
    assert member.call(client, lambda: "answer") == "answer"


def test_L5_a_rank_joins_once_with_the_token_of_its_launch(
    jobs: Jobs, client: PlannerClient, member: Membership
) -> None:
    for _ in range(3):
        join(member, client)
    assert [(request.job_id, request.token) for request in jobs.asked] == [("job", "token")]
    assert member.epoch == 7


def test_a_rank_that_waits_asks_at_most_once_a_second(
    jobs: Jobs, client: PlannerClient, member: Membership, clock: Clock
) -> None:
    jobs.error = NotReady("the driver has not registered yet")
    for _ in range(5):
        with pytest.raises(NotReady, match="not registered yet"):
            member.call(client, lambda: "answer")
        clock.now_s += 0.4
    assert len(jobs.asked) == 2
    assert not member.has_other_launch
    jobs.error = None
    clock.now_s += 1.0
    join(member, client)


def test_L2_a_new_attempt_of_the_same_launch_is_joined_within_the_call(
    jobs: Jobs, client: PlannerClient, member: Membership
) -> None:
    answers = [OVER, None]

    def method() -> str:
        if error := answers.pop(0):
            raise error
        return "answer"

    join(member, client)
    jobs.epoch = 9
    assert member.call(client, method) == "answer"
    assert (member.epoch, len(jobs.asked)) == (9, 2)


def test_S9_a_report_of_the_attempt_before_is_not_sent_to_a_new_one(
    jobs: Jobs, client: PlannerClient, member: Membership
) -> None:
    reported = []

    def report() -> None:
        reported.append(jobs.epoch)
        if len(reported) == 1:
            raise RolledBack("the training went back to step 3")

    join(member, client)
    jobs.epoch = 9
    with pytest.raises(RolledBack):
        member.call(client, report, is_repeatable=False)
    assert reported == [9]
    member.call(client, report, is_repeatable=False)
    assert not member.has_other_launch


def test_L1_a_rank_whose_attempt_is_over_says_so_once_and_trains_on(
    jobs: Jobs, client: PlannerClient, member: Membership, caplog: pytest.LogCaptureFixture
) -> None:
    join(member, client)
    jobs.error = OVER

    def method() -> None:
        raise OVER

    for _ in range(3):
        with pytest.raises(StaleEpoch, match="began at 12:03:00 UTC on host-b:99"):
            member.call(client, method)
        assert member.has_other_launch
    assert [record.getMessage() for record in caplog.records] == [f"training goes on without plans: {OVER}"]


def test_L5_a_rank_whose_attempt_was_over_joins_again_once_its_driver_has_registered_again(
    jobs: Jobs, client: PlannerClient, member: Membership, caplog: pytest.LogCaptureFixture
) -> None:
    join(member, client)
    jobs.error = OVER
    member.rejoin()
    with pytest.raises(StaleEpoch):
        join(member, client)
    jobs.error, jobs.epoch = None, 9
    with caplog.at_level(logging.WARNING):
        join(member, client)
    assert (member.has_other_launch, member.epoch) == (False, 9)
    assert caplog.records[-1].getMessage() == "this launch trains job job again"


def test_S7_an_error_that_is_kept_does_not_grow(jobs: Jobs, client: PlannerClient, member: Membership) -> None:
    """Its frames would hold the reports of all calls of a long outage."""
    jobs.error = NotReady("the driver has not registered yet")

    def num_frames() -> int:
        with pytest.raises(NotReady) as caught:
            member.call(client, lambda: None)
        return len(list(traceback.walk_tb(caught.value.__traceback__)))

    num_frames()
    assert len({num_frames() for _ in range(3)}) == 1
