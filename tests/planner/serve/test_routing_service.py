"""Ingest over a real stream, message by message."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from harness.reports import report_one
from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, count, routed_experts
from relibra.errors import InvalidInput, LimitExceeded, NotFound, Unavailable
from relibra.planner.limits.admission import Admission
from relibra.planner.metrics import Metrics
from relibra.planner.plan_notifier import ShuttingDown
from relibra.planner.serve.routing_service import CREDIT_SEQUENCES, RoutingService
from relibra.planner.settings import PlannerSettings
from relibra.planning import Schedule
from relibra.planning.launch import Launch
from relibra.store import Attempt, Store
from relibra.store.rollbacks import way_back
from relibra.v1 import routing_pb2
from relibra.wire import array
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.routing import open_stream
from relibra.wire.status import from_rpc_error

COUNTS_LE = count(routed_experts(0, 10))
Request = routing_pb2.ReportRoutingRequest


@pytest.fixture
def channel(shared_planner: Service) -> Iterator[grpc.Channel]:
    with open_channel(shared_planner.address) as channel:
        yield channel


@pytest.fixture
def epoch(client: PlannerClient, job_id: str) -> int:
    """The attempt of the job."""
    return client.join_attempt(job_id)


def good(ordinal: int, job_id: str, name: str = "seq", step: int = 1, epoch: int = 0) -> Request:
    return report_one(ordinal, job_id, step, name, 10, COUNTS_LE, epoch=epoch)


def bad(ordinal: int, job_id: str, **change: object) -> Request:
    request = good(ordinal, job_id, f"bad-{ordinal}")
    for field, value in change.items():
        if isinstance(value, np.ndarray):
            request.sequences[0].counts.CopyFrom(array.encode(value))
        else:
            setattr(request.sequences[0], field, value)
    return request


def answers(channel: grpc.Channel, requests: list[Request], epoch: int) -> dict[int, tuple[str, str]]:
    """Send all requests for an attempt; return the refusals when all are answered."""
    refused: dict[int, tuple[str, str]] = {}
    answered_through = 0
    for request in requests:
        for sequence in request.sequences:
            sequence.epoch = epoch
    stream = open_stream(channel, iter(requests))
    first = next(stream)
    assert (first.answered_through, first.credit_through) == (0, CREDIT_SEQUENCES)
    for response in stream:
        assert response.answered_through > answered_through
        assert response.credit_through == response.answered_through + CREDIT_SEQUENCES
        answered_through = response.answered_through
        refused |= {each.ordinal: (each.error, each.message) for each in response.refused}
    assert answered_through == sum(len(request.sequences) for request in requests)
    return refused


def test_bad_sequences_are_refused_by_name_and_the_stream_goes_on(
    channel: grpc.Channel, epoch: int, client: PlannerClient, job_id: str
) -> None:
    wrong_sum = COUNTS_LE.copy()
    wrong_sum[2, 0] += 1
    refused = answers(
        channel,
        [
            good(1, job_id, "first"),
            bad(2, "nobody"),
            bad(3, job_id, counts=COUNTS_LE[:2]),
            bad(4, job_id, counts=COUNTS_LE.astype(np.int32)),
            bad(5, job_id, counts=wrong_sum),
            bad(6, job_id, sequence_id=""),
            bad(7, job_id, sequence_id="x" * 201),
            bad(8, job_id, step=2**60),
            bad(9, job_id, first_policy_version=4),
            bad(10, job_id, first_policy_version=4, last_policy_version=3),
            good(11, job_id, "last"),
        ],
        epoch,
    )
    assert {ordinal: error for ordinal, (error, _) in refused.items()} == {
        2: "UnknownJob",
        3: "InvalidInput",
        4: "InvalidInput",
        5: "InvalidInput",
        6: "InvalidInput",
        7: "InvalidInput",
        8: "InvalidInput",
        9: "InvalidInput",
        10: "InvalidInput",
    }
    for ordinal, text in {
        2: "'nobody' is not registered",
        3: "counts.shape: expected [3, 8], got [2, 8]",
        4: "counts.dtype",
        5: "counts[2]: expected a sum of 20 (10 rows x top 2), got 21",
        6: "sequence_id",
        7: "sequence_id",
        8: "step",
        9: "policy_version: expected the first and the last together, rising, got 4 and none",
        10: "got 4 and 3",
    }.items():
        assert text in refused[ordinal][1]
    client.submit_schedule(job_id, 1, ["first", "last"], Schedule.round_robin(2, 1, CLUSTER))


def test_sequences_of_one_message_are_kept_and_refused_each_for_itself(
    channel: grpc.Channel, epoch: int, client: PlannerClient, job_id: str
) -> None:
    together = good(1, job_id, "a")
    for other in (bad(2, job_id, num_rows=11), good(3, job_id, "c", step=2), bad(4, job_id, step=2**60)):
        together.sequences.extend(other.sequences)
    stream = [together, good(5, job_id, "e"), bad(6, job_id, sequence_id="")]
    assert {ordinal: error for ordinal, (error, _) in answers(channel, stream, epoch).items()} == {
        2: "InvalidInput",
        4: "InvalidInput",
        6: "InvalidInput",
    }
    client.submit_schedule(job_id, 1, ["a", "e"], Schedule.round_robin(2, 1, CLUSTER))
    client.submit_schedule(job_id, 2, ["c"], Schedule.round_robin(1, 1, CLUSTER))


def test_S7_a_message_without_sequences_ends_the_stream(channel: grpc.Channel, epoch: int, job_id: str) -> None:
    """It would use up no credit, and cost the planner as much as one that does."""
    with pytest.raises(grpc.RpcError) as caught:
        answers(channel, [Request(ordinal=1, job_id=job_id)], epoch)
    assert "sequences: expected at least one, got none" in str(from_rpc_error(caught.value))


def test_the_same_content_is_acknowledged_again_and_other_content_refused(
    channel: grpc.Channel, epoch: int, job_id: str
) -> None:
    other = report_one(3, job_id, 1, "seq", 9, count(routed_experts(1, 9)))
    refused = answers(channel, [good(1, job_id), good(2, job_id), other, good(4, job_id)], epoch)
    assert list(refused) == [3]
    assert refused[3][0] == "Conflict"
    assert answers(channel, [good(1, job_id)], epoch) == {}
    wide = report_one(1, job_id, 1, "seq", 10, COUNTS_LE.astype(np.uint32))
    narrow = report_one(2, job_id, 1, "seq", 10, COUNTS_LE.astype(np.min_scalar_type(COUNTS_LE.max())))
    assert wide.sequences[0].counts.dtype != narrow.sequences[0].counts.dtype
    assert answers(channel, [wide, narrow], epoch) == {}


@pytest.mark.parametrize(
    "request_", [good(1, "job"), bad(1, "job", num_rows=11), good(1, "nobody")], ids=["kept", "bad", "unknown"]
)
def test_S7_a_job_beyond_its_quota_waits_on_every_new_stream_whatever_it_sends(
    store: Store, run: Loop, request_: Request
) -> None:
    slow = PlannerSettings.load(redis_url="unix:///unused", max_ingest_bytes_per_s=1)
    service = RoutingService(store, Admission(slow), Metrics())

    async def requests() -> AsyncIterator[Request]:
        yield request_

    async def scenario() -> None:
        request_.sequences[0].epoch = (await store.register_job("job", MODEL, CLUSTER, PARAMS)).epoch
        answers = aiter(service.ReportRouting(requests(), SimpleNamespace(invocation_metadata=tuple)))
        assert (await anext(answers)).answered_through == 0
        answer = asyncio.ensure_future(anext(answers))
        # An answer would take one round trip to Redis; these are twenty.
        for _ in range(20):
            assert await store.reported_sequences(await store.get_job("job"), 1) == set()
        assert not answer.done()
        service.drain()
        assert (await answer).answered_through == 1
        with pytest.raises(ShuttingDown, match="shutting down"):
            await anext(answers)

    run(scenario())


def test_nothing_of_a_refused_sequence_is_kept(
    channel: grpc.Channel, epoch: int, client: PlannerClient, job_id: str
) -> None:
    assert list(answers(channel, [bad(1, job_id, num_rows=11), good(2, job_id)], epoch)) == [1]
    with pytest.raises(NotFound, match=r"1 of 2 .* 'bad-1'"):
        client.submit_schedule(job_id, 1, ["bad-1", "seq"], Schedule.round_robin(2, 1, CLUSTER))


def test_ordinals_that_skip_end_the_stream(channel: grpc.Channel, epoch: int, job_id: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        answers(channel, [good(1, job_id), good(3, job_id)], epoch)
    raised = from_rpc_error(caught.value)
    assert isinstance(raised, InvalidInput)
    assert "ordinal: expected 2, got 3" in str(raised)


def test_late_sequences_are_refused_by_name(
    channel: grpc.Channel, epoch: int, client: PlannerClient, job_id: str
) -> None:
    assert answers(channel, [good(1, job_id)], epoch) == {}
    client.submit_schedule(job_id, 1, ["seq"], Schedule.round_robin(1, 1, CLUSTER))
    refused = answers(channel, [good(1, job_id), good(2, job_id, "late"), good(3, job_id, "next", step=2)], epoch)
    assert list(refused) == [2]
    assert refused[2] == (
        "Conflict",
        "sequence 'late' is late: step 1 has its schedule; report it for the step that trains on it; "
        + way_back(job_id, 1),
    )


def test_S6_a_batch_of_refused_sequences_reads_the_attempts_of_its_job_a_few_times(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = RoutingService(store, Admission(PlannerSettings.load(redis_url="unix:///unused")), Metrics())
    first, second = (
        run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=Launch(token=token))) for token in ("one", "two")
    )
    num_reads = 0
    list_attempts = store.list_attempts

    async def counted(job_id: str) -> list[Attempt]:
        nonlocal num_reads
        num_reads += 1
        return await list_attempts(job_id)

    monkeypatch.setattr(store, "list_attempts", counted)

    def named(ordinal: int, epoch: int) -> Request:
        return report_one(ordinal, "job", 1, f"seq-{ordinal}", 10, COUNTS_LE, epoch=epoch)

    batch = [*(named(ordinal, first.epoch) for ordinal in range(1, 129)), named(129, second.epoch)]
    refused = run(service._keep(batch, {"job": second}))
    assert [(each.ordinal, each.error) for each in refused] == [(ordinal, "StaleEpoch") for ordinal in range(1, 129)]
    assert all("attempt 1 of job 'job' is over" in each.message for each in refused)
    assert num_reads == 1


def test_S4_a_sequence_that_names_no_attempt_is_refused_and_does_not_keep_the_right_one_out(
    channel: grpc.Channel, client: PlannerClient, job_id: str
) -> None:
    """A worker that an older launch left over would otherwise report first, and the right counts be in conflict."""
    left_over = report_one(1, job_id, 1, "seq", 10, COUNTS_LE, epoch=0)
    (refusal,) = [refusal for answer in open_stream(channel, iter([left_over])) for refusal in answer.refused]
    assert refusal.error == "InvalidInput"
    assert refusal.message.startswith("epoch: expected the attempt of the caller")
    other_LE = count(routed_experts(7, 10))
    right = report_one(1, job_id, 1, "seq", 10, other_LE, epoch=client.join_attempt(job_id))
    answers = list(open_stream(channel, iter([right])))
    assert answers[-1].answered_through == 1
    assert not any(answer.refused for answer in answers)


def test_sequences_are_not_refused_because_redis_is_away_for_a_moment(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = RoutingService(store, Admission(PlannerSettings.load(redis_url="unix:///unused")), Metrics())
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))

    async def away(job_id: str) -> list[Attempt]:
        raise Unavailable("Redis is away")

    monkeypatch.setattr(store, "list_attempts", away)
    request = report_one(1, "job", 1, "seq", 10, COUNTS_LE, epoch=job.epoch - 1)
    with pytest.raises(Unavailable):
        run(service._keep([request], {"job": job}))


def test_S7_a_sender_that_ignores_its_credit_is_held_back_or_cut_off(
    channel: grpc.Channel, epoch: int, job_id: str
) -> None:
    num_requests = 20 * CREDIT_SEQUENCES
    call = open_stream(channel, (good(ordinal, job_id, epoch=epoch) for ordinal in range(1, num_requests + 1)))
    answered, cut_off = 0, None
    try:
        for response in call:
            assert response.answered_through - answered <= CREDIT_SEQUENCES
            answered = response.answered_through
    except grpc.RpcError as error:
        cut_off = from_rpc_error(error)
    assert answered == num_requests if cut_off is None else isinstance(cut_off, LimitExceeded)
