"""The reporter against a real planner."""

import logging
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually, routed_experts
from relibra.errors import Conflict, InvalidInput, NotFound, RelibraError, TooManyCalls, Unavailable, UnknownJob
from relibra.planning import Schedule
from relibra.rollout import RolloutReporter
from relibra.rollout import reporter as reporter_module
from relibra.routing import ModelLayers, count_routed_experts
from relibra.routing.sequence_routing import sequence_routing
from relibra.store.keys import JobKeys
from relibra.v1 import job_pb2, job_pb2_grpc, routing_pb2, routing_pb2_grpc
from relibra.wire.client import PlannerClient
from relibra.wire.status import to_status

NOWHERE = "127.0.0.1:1"


def reporter_of(address: str, job_id: str, **options: int) -> RolloutReporter:
    return RolloutReporter(address, job_id, num_experts=MODEL.num_experts, **options)


def test_reported_sequences_can_be_scheduled(client: PlannerClient, shared_planner: Service, job_id: str) -> None:
    with reporter_of(shared_planner.address, job_id) as reporter:
        assert all(reporter.report(1, f"seq-{index}", routed_experts(index, 6)) for index in range(4))
        assert reporter.flush() == 4
        assert reporter.flush() == 0
        assert reporter.report(1, "seq-0", routed_experts(0, 6))
    client.submit_schedule(job_id, 1, [f"seq-{index}" for index in range(4)], Schedule.round_robin(4, 2, CLUSTER))


def test_torch_tensors_and_every_integer_dtype_are_taken(shared_planner: Service, job_id: str) -> None:
    torch = pytest.importorskip("torch")
    with reporter_of(shared_planner.address, job_id) as reporter:
        for dtype in (np.uint8, np.int16, np.int32, np.int64):
            # All have one name, so different counts would be a conflict.
            reporter.report(1, "seq", routed_experts(0, 6).astype(dtype))
            reporter.report(1, "seq", torch.from_numpy(routed_experts(0, 6).astype(dtype)))
        assert reporter.flush() == 8


def test_S9_decoded_routing_is_reported_and_one_without_a_place_is_said_once(
    shared_planner: Service, job_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    layers = ModelLayers.uniform(num_layers=MODEL.num_layers, num_experts=MODEL.num_experts, top_k=MODEL.top_k)
    rows = routed_experts(0, 5)
    with reporter_of(shared_planner.address, job_id) as reporter:
        reporter.report(1, "seq", rows)
        for num_tokens in (6, None, None):  # the same name, so different counts would be a conflict
            reporter.report(1, "seq", sequence_routing(rows, layers, num_tokens=num_tokens))
        assert reporter.flush() == 4
    said = [each.getMessage() for each in caplog.records if "its number of tokens" in each.getMessage()]
    assert [each.split()[0] for each in said] == ["seq"]


def test_the_array_may_be_reused_at_once(shared_planner: Service, job_id: str) -> None:
    array = routed_experts(0, 6)
    with reporter_of(shared_planner.address, job_id) as reporter:
        reporter.report(1, "seq", array)
        array[:] = 0
        reporter.report(1, "seq", routed_experts(0, 6))
        assert reporter.flush() == 2


@pytest.mark.parametrize(
    "routed_TLK", [np.zeros((4, 3), dtype=np.uint8), np.zeros((4, 3, 2)), np.zeros((4, 3, 2), dtype=bool)]
)
def test_arrays_of_another_shape_or_dtype_are_refused_at_once(routed_TLK: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match=r"routed_experts: expected integers of shape \[rows, layers, top_k\]"):
        reporter_of(NOWHERE, "job").report(1, "seq", routed_TLK)


@pytest.mark.parametrize(
    ("step", "sequence_id", "policy_versions", "fault"),
    [
        (-1, "seq", None, "step: expected a whole number from 0 to .* got -1"),
        (2**64, "seq", None, "step: expected a whole number"),
        (1.5, "seq", None, "step: expected a whole number .* got 1.5"),
        (1, 17, None, "sequence_id: expected text, got 17"),
        (1, "\ud800", None, "sequence_id: expected text that UTF-8 can encode"),
        (1, "", None, "sequence_id: expected 1 to 200 bytes, got 0 bytes"),
        (1, "seq", (3, -4), "policy_versions: expected a whole number .* got -4"),
    ],
)
def test_S7_names_that_cannot_be_sent_are_refused_at_once_and_the_others_arrive(
    shared_planner: Service, job_id: str, step: Any, sequence_id: Any, policy_versions: Any, fault: str
) -> None:
    with reporter_of(shared_planner.address, job_id) as reporter:
        with pytest.raises(InvalidInput, match=fault):
            reporter.report(step, sequence_id, routed_experts(0, 6), policy_versions=policy_versions)
        assert reporter.report(np.int64(1), "seq", routed_experts(0, 6), policy_versions=(3, 4))
        assert reporter.flush() == 1


def test_S7_a_report_that_no_message_can_say_does_not_end_the_stream(shared_planner: Service, job_id: str) -> None:
    with reporter_of(shared_planner.address, job_id) as reporter:
        reporter.report_counts(1, "seq", np.ones((3, 8), np.uint8), num_rows=-1)
        reporter.report(1, "next", routed_experts(0, 6))
        with pytest.raises(RelibraError, match="'seq' of step 1: it cannot be sent"):
            reporter.flush()
        reporter.report(1, "after", routed_experts(1, 6))
        assert reporter.flush() == 1


@pytest.mark.parametrize(
    ("routed_TLK", "fault"),
    [
        (np.full((4, 3, 2), MODEL.num_experts, dtype=np.uint8), "expert"),
        (np.zeros((4, 2, 2), dtype=np.uint8), r"counts.shape: expected \[3, 8\], got \[2, 8\]"),
        (np.zeros((4, 3, 3), dtype=np.uint8), r"expected a sum of 8 \(4 rows x top 2\), got 12"),
    ],
)
def test_flush_names_the_first_refused_sequence_and_the_others_are_kept(
    client: PlannerClient, shared_planner: Service, job_id: str, routed_TLK: np.ndarray, fault: str
) -> None:
    with reporter_of(shared_planner.address, job_id) as reporter:
        reporter.report(7, "before", routed_experts(0, 6))
        reporter.report(7, "bad", routed_TLK)
        reporter.report(7, "after", routed_experts(1, 6))
        with pytest.raises(InvalidInput, match=rf"1 sequences were refused; the first is 'bad' of step 7: .*{fault}"):
            reporter.flush()
        assert reporter.flush() == 0
    client.submit_schedule(job_id, 7, ["before", "after"], Schedule.round_robin(2, 1, CLUSTER))


def test_an_unknown_job_and_conflicting_content_are_refusals(shared_planner: Service, job_id: str) -> None:
    reporter = reporter_of(shared_planner.address, "nobody")
    reporter.report(1, "seq", routed_experts(0, 6))
    eventually(lambda: reporter._trouble)
    with pytest.raises(UnknownJob, match="'nobody' is not registered"):
        reporter.flush(timeout_s=0)
    reporter.close()
    with reporter_of(shared_planner.address, job_id) as reporter:
        reporter.report(1, "seq", routed_experts(0, 6))
        reporter.report(1, "seq", routed_experts(1, 6))
        with pytest.raises(Conflict, match="'seq' of step 1"):
            reporter.flush()


def test_S9_a_refusal_that_nobody_flushed_is_logged_once_and_raised_by_the_next_report_of_another_step(
    client: PlannerClient, shared_planner: Service, job_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), reporter_of(shared_planner.address, job_id) as reporter:
        for index in range(3):
            reporter.report(1, f"bad-{index}", np.zeros((4, 2, 2), dtype=np.uint8))
        eventually(lambda: reporter._outbox.num_unanswered() == 0)
        assert reporter.report(1, "good", routed_experts(0, 6))
        with pytest.raises(InvalidInput, match=r"3 sequences were refused; the first is 'bad-0' of step 1"):
            reporter.report(2, "next", routed_experts(1, 6))
        assert reporter.report(2, "after", routed_experts(2, 6))
        assert reporter.flush() == 3
    assert caplog.text.count("was refused, so a step that schedules it gets no plan") == 1
    client.submit_schedule(job_id, 2, ["next", "after"], Schedule.round_robin(2, 1, CLUSTER))


def test_S9_closing_names_refusals_that_no_call_raised(
    shared_planner: Service, job_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = reporter_of(shared_planner.address, job_id)
    reporter.report(1, "bad", np.zeros((4, 2, 2), dtype=np.uint8))
    eventually(lambda: reporter._outbox.num_unanswered() == 0)
    reporter.close()
    assert "closed before anybody heard of 1 refused sequences; the first is 'bad' of step 1" in caplog.text


def test_counts_are_reported_like_the_sequences_that_they_count(shared_planner: Service, job_id: str) -> None:
    with reporter_of(shared_planner.address, job_id) as reporter:
        counts_LE = count_routed_experts(routed_experts(0, 6), MODEL.num_experts)
        reporter.report(1, "seq", routed_experts(0, 6))
        reporter.report_counts(1, "seq", counts_LE, 6)  # other counts would be a conflict
        assert reporter.flush() == 2
        with pytest.raises(InvalidInput, match="step: expected a whole number"):
            reporter.report_counts(-1, "seq", counts_LE, 6)


def test_L1_counts_wait_for_room_no_longer_than_they_may() -> None:
    counts_LE = count_routed_experts(routed_experts(0, 6), MODEL.num_experts)
    reporter = reporter_of(NOWHERE, "job", buffer_size_bytes=counts_LE.size)
    reporter.report_counts(1, "first", counts_LE, 6)
    with pytest.raises(Unavailable, match=f"had no room within 0.1 s: check that the planner at {NOWHERE} answers"):
        reporter.report_counts(1, "second", counts_LE, 6, timeout_s=0.1)
    reporter.close()


def test_leaving_the_context_flushes_and_raises(shared_planner: Service, job_id: str) -> None:
    with pytest.raises(InvalidInput), reporter_of(shared_planner.address, job_id) as reporter:
        reporter.report(1, "seq", np.zeros((4, 2, 2), dtype=np.uint8))


def test_S7_a_full_buffer_drops_counts_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    array = routed_experts(0, 10)
    reporter = reporter_of(NOWHERE, "job", buffer_size_bytes=3 * array.nbytes)
    with caplog.at_level(logging.WARNING):
        taken = [reporter.report(1, f"seq-{index}", array) for index in range(6)]
        # Counting makes room, so the first few may all fit; a large sequence never does.
        taken.append(reporter.report(1, "large", np.repeat(array, 4, axis=0)))
        taken.append(reporter.report(1, "large", np.repeat(array, 4, axis=0)))
    assert taken[:3] == [True, True, True]
    assert taken[-2:] == [False, False]
    assert reporter.num_dropped == taken.count(False)
    assert caplog.text.count("raise buffer_size_bytes") == 1
    reporter.close()


def test_L1_reporting_never_waits_for_a_planner_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    reporter = reporter_of(NOWHERE, "job")
    for index in range(50):
        assert reporter.report(1, f"seq-{index}", routed_experts(0, 6))
    with pytest.raises(Unavailable, match=rf"50 sequences were not acknowledged by the planner at {NOWHERE}"):
        reporter.flush(timeout_s=0.2)
    reporter.close()
    assert "closed with 50 sequences" in caplog.text
    with pytest.raises(RelibraError, match="closed"):
        reporter.report(1, "seq", routed_experts(0, 6))
    reporter.close()


def test_many_threads_report_through_one_reporter(client: PlannerClient, shared_planner: Service, job_id: str) -> None:
    with reporter_of(shared_planner.address, job_id) as reporter:

        def work(worker: int) -> None:
            for index in range(25):
                reporter.report(1, f"seq-{worker}-{index}", routed_experts(index, 6))

        workers = [threading.Thread(target=work, args=[worker]) for worker in range(8)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
        assert reporter.flush() == 200
    ids = [f"seq-{worker}-{index}" for worker in range(8) for index in range(25)]
    client.submit_schedule(job_id, 1, ids, Schedule.round_robin(200, 2, CLUSTER))


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
            eventually(lambda: "the planner is shutting down" in str(reporter._trouble))
            reporter.report(1, "seq-10", routed_experts(0, 6))
            planner.start()
            assert reporter.flush() == 1
        eventually(lambda: "planner drains" in planner.log())
        client.submit_schedule("job", 1, [f"seq-{index}" for index in range(11)], Schedule.round_robin(11, 1, CLUSTER))


def test_importing_it_takes_numpy_grpc_and_protobuf_only() -> None:
    script = (
        "import sys; import relibra.rollout;"
        "print([each for each in ('redis', 'fastapi', 'uvicorn', 'torch', 'numba', 'typer', 'pydantic', 'rich')"
        " if each in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


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
    monkeypatch.setattr(reporter_module, "_MAX_BACKOFF_S", 0.1)
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
