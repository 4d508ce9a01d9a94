"""The reporter against a real planner."""

import logging
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, Service, eventually, routed_experts
from relibra.errors import Conflict, InvalidInput, RelibraError, Unavailable, UnknownJob
from relibra.planning import Schedule
from relibra.rollout import RolloutReporter
from relibra.routing import ModelLayers, count_routed_experts
from relibra.routing.sequence_routing import sequence_routing
from relibra.wire.client import PlannerClient

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
    eventually(lambda: reporter.trouble)
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
        eventually(lambda: reporter.num_waiting == 0)
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
    eventually(lambda: reporter.num_waiting == 0)
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


def test_importing_it_takes_numpy_grpc_and_protobuf_only() -> None:
    script = (
        "import sys; import relibra.rollout;"
        "print([each for each in ('redis', 'fastapi', 'uvicorn', 'torch', 'numba', 'typer', 'pydantic', 'rich')"
        " if each in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
