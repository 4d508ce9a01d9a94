"""A rank's membership in an attempt, with a gRPC server on a real socket whose answers the test scripts."""

import logging
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from relibra.agent.plans.membership import Membership
from relibra.agent.plans.trainer_group import RankLaunch, TrainerGroup
from relibra.errors import AlreadyRunning, NotReady, RelibraError, RolledBack, StaleEpoch, Unavailable
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.client import PlannerClient
from relibra.wire.status import to_status

OVER = StaleEpoch("attempt 1 of job 'job' is over: attempt 2 began at 12:03:00 UTC on host-b:99")
RUNNING = AlreadyRunning("job 'job' is being trained by the trainer ranks of host-b:99")


class Jobs(job_pb2_grpc.JobServiceServicer):
    """Answers with `epoch`, or raises `error`."""

    def __init__(self) -> None:
        self.asked: list[job_pb2.JoinAttemptRequest] = []
        self.epoch, self.is_bound = 7, True
        self.error: RelibraError | None = None

    def JoinAttempt(self, request: job_pb2.JoinAttemptRequest, context: grpc.ServicerContext) -> Any:
        self.asked.append(request)
        if self.error is not None:
            code, details, metadata = to_status(self.error)
            context.set_trailing_metadata(metadata)
            context.abort(code, details)
        return job_pb2.JoinAttemptResponse(
            epoch=self.epoch, attempt=1, launch="launch", is_bound=self.is_bound, renew_ms=5000
        )


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
    with PlannerClient(f"127.0.0.1:{port}") as client:
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


def membership(clock: Clock, rank: int = 0) -> Membership:
    launches = [RankLaunch(token="token", is_shared=False, owner="host-a:1", process="ranks")] * 2
    return Membership("job", TrainerGroup.of(launches, rank), clock)


def test_L5_only_the_first_rank_keeps_an_attempt_alive(jobs: Jobs, client: PlannerClient, clock: Clock) -> None:
    first, second = membership(clock), membership(clock, rank=1)
    for each in (first, second):
        assert each.due_in_s == 0.0
        each.renew(client)
    assert (first.due_in_s, second.due_in_s) == (5.0, None)
    clock.now_s += 6.0
    assert first.due_in_s == 0.0
    asked = jobs.asked[0]
    assert (asked.token, asked.is_shared, asked.group, asked.owner) == ("token", False, "ranks", "host-a:1")


def test_every_rank_asks_until_it_is_bound(jobs: Jobs, client: PlannerClient, clock: Clock) -> None:
    jobs.is_bound = False
    second = membership(clock, rank=1)
    second.renew(client)
    assert second.due_in_s == 5.0
    jobs.is_bound = True
    second.renew(client)
    second.renew(client)
    assert second.due_in_s is None
    assert [each.launch for each in jobs.asked] == ["", "", "launch"]


def test_a_rank_that_waits_asks_at_most_once_a_second(jobs: Jobs, client: PlannerClient, clock: Clock) -> None:
    jobs.error = NotReady("the driver has not registered yet")
    waiting = membership(clock)
    for _ in range(5):
        with pytest.raises(NotReady, match="not registered yet"):
            waiting.call(client, lambda: "answer")
        clock.now_s += 0.4
    assert len(jobs.asked) == 2
    assert not waiting.has_other_launch
    jobs.error = None
    clock.now_s += 1.0
    assert waiting.call(client, lambda: "answer") == "answer"


def test_L2_a_new_attempt_of_the_same_launch_is_joined_within_the_call(
    jobs: Jobs, client: PlannerClient, clock: Clock
) -> None:
    member, answers = membership(clock), [OVER, None]

    def method() -> str:
        if error := answers.pop(0):
            raise error
        return "answer"

    member.renew(client)
    jobs.epoch = 9
    assert member.call(client, method) == "answer"
    assert [each.epoch for each in jobs.asked] == [0, 7]
    assert [each.launch for each in jobs.asked] == ["", "launch"]


def test_S9_a_report_of_the_attempt_before_is_not_sent_to_a_new_one(
    jobs: Jobs, client: PlannerClient, clock: Clock
) -> None:
    member, reported = membership(clock), []

    def report() -> None:
        reported.append(jobs.epoch)
        if len(reported) == 1:
            raise RolledBack("the training went back to step 3")

    member.renew(client)
    jobs.epoch = 9
    with pytest.raises(RolledBack):
        member.call(client, report, is_repeatable=False)
    assert reported == [9]
    member.call(client, report, is_repeatable=False)
    assert not member.has_other_launch


def test_L1_a_rank_whose_attempt_is_over_says_so_once_and_asks_once_a_minute(
    jobs: Jobs, client: PlannerClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    member = membership(clock)
    member.renew(client)
    jobs.error = OVER

    def method() -> None:
        raise OVER

    for num_asked in (2, 2, 3):
        with pytest.raises(StaleEpoch, match="began at 12:03:00 UTC on host-b:99"):
            member.call(client, method)
        assert len(jobs.asked) == num_asked
        assert (member.has_other_launch, member.is_hopeless) == (True, True)
        clock.now_s += 40.0
    assert member.due_in_s == 20.0
    assert [each.getMessage() for each in caplog.records] == [f"training goes on without plans: {OVER}"]


def test_L5_ranks_whose_attempt_was_taken_over_join_again_once_their_driver_has(
    jobs: Jobs, client: PlannerClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    second = membership(clock, rank=1)
    second.renew(client)
    jobs.error = OVER
    second.rejoin()
    second.renew(client)
    jobs.error = Unavailable("the planner is away")
    clock.now_s += 60.0
    second.renew(client)
    assert (second.has_other_launch, second.due_in_s) == (True, 60.0), "an outage is no news of the other launch"
    jobs.error, jobs.epoch = None, 9
    clock.now_s += 60.0
    assert second.due_in_s == 0.0
    with caplog.at_level(logging.WARNING):
        second.renew(client)
    assert (second.has_other_launch, second.is_hopeless, second.epoch) == (False, False, 9)
    assert caplog.records[-1].getMessage() == "this launch trains job job now"


def test_L1_a_lost_attempt_stays_lost_while_yet_another_launch_is_in_it(
    jobs: Jobs, client: PlannerClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps do not begin to wait again, and the log does not name the loss a second time."""
    member = membership(clock)
    member.renew(client)
    for jobs.error in (OVER, RUNNING, OVER):
        clock.now_s += 60.0
        member.renew(client)
        assert (member.is_hopeless, member.due_in_s) == (True, 60.0)
    assert [each.getMessage() for each in caplog.records] == [f"training goes on without plans: {OVER}"]


def test_after_a_rollback_a_rank_asks_at_once_whether_its_attempt_is_over(
    jobs: Jobs, client: PlannerClient, clock: Clock
) -> None:
    member = membership(clock)
    member.renew(client)
    jobs.error = OVER
    clock.now_s += 5.0
    member.renew(client)
    jobs.error = None
    member.rejoin()
    assert member.call(client, lambda: "the plan") == "the plan"


def test_S7_an_error_that_is_kept_does_not_grow(jobs: Jobs, client: PlannerClient, clock: Clock) -> None:
    """Its frames would hold the reports of all calls of a long outage."""
    member = membership(clock)
    member.renew(client)
    jobs.error = OVER
    clock.now_s += 5.0
    member.renew(client)

    def num_frames() -> int:
        with pytest.raises(StaleEpoch) as caught:
            member.call(client, lambda: None)
        return len(list(traceback.walk_tb(caught.value.__traceback__)))

    assert len({num_frames() for _ in range(3)}) == 1


def test_L1_steps_wait_for_another_launch_to_die_but_not_for_ever(
    jobs: Jobs, client: PlannerClient, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.error = RUNNING
    member = membership(clock)
    member.renew(client)
    assert (member.has_other_launch, member.is_hopeless) == (True, False)
    clock.now_s += 61.0
    member.renew(client)
    assert member.is_hopeless
    jobs.error = None
    with caplog.at_level(logging.WARNING):
        member.renew(client)
    assert (member.has_other_launch, member.is_hopeless) == (False, False)
    assert [each.getMessage() for each in caplog.records] == [
        f"training goes on without plans: {RUNNING}",
        "this launch trains job job now",
    ]


def test_a_planner_that_knows_no_attempts_is_called_all_the_same(
    server: grpc.Server, client: PlannerClient, clock: Clock
) -> None:
    server.start()
    member = membership(clock)
    assert member.call(client, lambda: "answer") == "answer"
    assert member.due_in_s is None
