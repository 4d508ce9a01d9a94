"""Attacks on a planner: generators that do their worst with each `next`, and say how the planner answered.

An attack is at its limit when its first `next` returns. Closing the generator closes its connections.
"""

import contextlib
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from harness.reports import report_one
from harness.robustness.raw_http2 import RawConnection
from harness.services import CLUSTER, MODEL, PARAMS, count, routed_experts
from relibra.planning import Cluster, CostModel, ExecutionReport, Model, Phase, PlanParams, Schedule
from relibra.v1 import execution_pb2_grpc, plan_pb2, plan_pb2_grpc, routing_pb2
from relibra.wire import messages
from relibra.wire.channel import MAX_PART_SIZE_BYTES, open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials
from relibra.wire.routing import open_stream

JOB_ID = "attacker"
FETCH_PLAN = "/relibra.v1.PlanService/FetchPlan"
WATCH_HEALTH = "/grpc.health.v1.Health/Watch"
LARGE_MODEL = Model(num_layers=4, num_experts=512, top_k=4)
LARGE_CLUSTER = Cluster(num_nodes=64, gpus_per_node=8, redundant_slots=1)
LONGEST_SHAPE = (1 << 20) - 1024
"""How many extents of a shape fit the message of a sequence."""
_CALLS_PER_CONNECTION = 256
_NUM_IN_FLIGHT = 16
"""How many calls an attacker keeps open that sends one message after another."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A planner, and the token of job `attacker` there; empty without one."""

    address: str
    token: str = ""

    @property
    def credentials(self) -> Credentials | None:
        """The credentials of the attacker."""
        return Credentials(token=self.token) if self.token else None


Attack = Callable[[Target], Iterator[str]]


def calls_without_a_message(
    target: Target, path: str = FETCH_PLAN, num_calls: int = 8448, make_token: Callable[[], str | None] | None = None
) -> Iterator[str]:
    """Hold calls open by their headers alone, and open another one for each that the planner ends.

    `make_token` returns the token of each call; by default all have that of the target.
    """
    with contextlib.ExitStack() as stack:
        connections = _raw_connections(stack, target, num_calls // _CALLS_PER_CONNECTION)
        while True:
            for each in connections:
                for _ in range(_CALLS_PER_CONNECTION - each.num_open):
                    each.call(path, make_token() if make_token else target.token or None)
                each.receive(timeout_s=1.0 / len(connections))
            yield ""


def calls_without_a_token(target: Target) -> Iterator[str]:
    """Call without a token, and again as soon as the planner refuses."""
    return calls_without_a_message(target, num_calls=3584, make_token=lambda: None)


def calls_with_unknown_tokens(target: Target) -> Iterator[str]:
    """Call with a new token each time, which nobody has made, and again as soon as the planner refuses."""
    return calls_without_a_message(
        target, num_calls=3584, make_token=lambda: f"relibra_{secrets.token_hex(4)}_{secrets.token_urlsafe(32)}"
    )


def watches_of_health(target: Target, num_calls: int = 8448) -> Iterator[str]:
    """Watch the health of a planner many times over."""
    with contextlib.ExitStack() as stack:
        connections = _raw_connections(stack, target, num_calls // _CALLS_PER_CONNECTION)
        while True:
            for each in connections:
                for _ in range(_CALLS_PER_CONNECTION - each.num_open):
                    each.send_part(each.call(WATCH_HEALTH), 0, 0)
                each.receive(timeout_s=1.0 / len(connections))
            yield ""


def halves_of_messages(target: Target, num_calls: int = 24) -> Iterator[str]:
    """Send messages of 1 MiB without their end, one per connection, and begin each one again that the planner ends.

    Each `next` says how many calls the planner has ended so far.
    """
    with contextlib.ExitStack() as stack:
        connections = _raw_connections(stack, target, num_calls)
        while True:
            for each in connections:
                if not each.num_open:
                    stream = each.call("/relibra.v1.PlanService/SubmitSchedule", target.token or None)
                    each.send_part(stream, (1 << 20) - 64, (1 << 20) - 32)
            yield str(sum(len(each.ended) for each in connections))
            for each in connections:
                each.receive(timeout_s=1.0 / len(connections))


def shapes_of_many_extents(target: Target, num_extents: int = LONGEST_SHAPE) -> Iterator[str]:
    """Report sequences whose counts claim millions of extents, each on a stream of its own."""
    epoch = _register(target)
    request = report_one(1, JOB_ID, 1, "seq", 6, count(routed_experts(0, 6)), epoch=epoch)
    request.sequences[0].counts.shape.extend([1] * num_extents)
    with open_channel(target.address, target.credentials) as channel:
        while True:
            yield _answer_of_stream(channel, request)


def job_ids_of_megabytes(target: Target, size_bytes: int = 50 << 20) -> Iterator[str]:
    """Report sequences of jobs whose names take megabytes, each of another job."""
    counts_LE = count(routed_experts(0, 6))
    with open_channel(target.address, target.credentials) as channel:
        for number in itertools.count():
            job_id = f"{number:08}" * (size_bytes // 8)
            yield _answer_of_stream(channel, report_one(1, job_id, 1, "seq", 6, counts_LE, epoch=1))


def steps_of_many_points(target: Target, num_points: int = 256) -> Iterator[str]:
    """Have one step after another of 512 ranks planned with a cost model of many points."""
    points = tuple(map(float, range(1, num_points + 1)))
    params = PlanParams(cost=CostModel(expert_tokens=points, expert_us=points))
    ids = [f"seq-{index}" for index in range(2 * LARGE_CLUSTER.num_ranks)]
    schedule = Schedule.round_robin(len(ids), 2, LARGE_CLUSTER)
    counts_LE = count(routed_experts(0, 8, LARGE_MODEL), LARGE_MODEL)
    with (
        open_channel(target.address, target.credentials) as channel,
        PlannerClient(target.address, credentials=target.credentials, timeout_s=60) as client,
    ):
        epoch = client.register_job(JOB_ID, LARGE_MODEL, LARGE_CLUSTER, params)
        step = 0
        while True:
            step += 1
            requests = [
                report_one(1 + index, JOB_ID, step, name, 8, counts_LE, epoch=epoch) for index, name in enumerate(ids)
            ]
            _report(channel, requests)
            client.submit_schedule(JOB_ID, step, ids, schedule)
            if step > 1:  # the next step waits already while one is solved
                client.fetch_plan(JOB_ID, step - 1, LARGE_MODEL, wait_s=60)
                yield ""


def schedules_of_tiny_sequences(target: Target, num_sequences: int = 1 << 18) -> Iterator[str]:
    """Report as many sequences as a step may have, and submit the schedule of the step again and again."""
    epoch = _register(target)
    counts_LE = count(routed_experts(0, 1))
    ids = [f"{index:x}" for index in range(num_sequences)]
    with open_channel(target.address, target.credentials) as channel:
        for start in range(0, num_sequences, 512):
            names = enumerate(ids[start : start + 512], start=1)
            _report(
                channel,
                [report_one(ordinal, JOB_ID, 1, name, 1, counts_LE, epoch=epoch) for ordinal, name in names],
            )
        request = _schedule_request(1, ids, epoch)
        yield from _many_at_once(lambda _: _submit(channel, request))


def schedules_of_nothing(target: Target, num_sequences: int = 1 << 18) -> Iterator[str]:
    """Submit schedules of as many sequences as a step may have, none of them reported, for one step after another."""
    epoch = _register(target)
    request = _schedule_request(1, [f"{index:x}" for index in range(num_sequences)], epoch)

    with open_channel(target.address, target.credentials) as channel:

        def submit_next(number: int) -> Any:
            request.step = number
            return _submit(channel, request)

        yield from _many_at_once(submit_next)


def fetches_that_wait(target: Target, num_calls: int = 4096) -> Iterator[str]:
    """Wait for a step that never comes, in many calls."""
    epoch = _register(target)
    with open_channel(target.address, target.credentials) as channel:  # so that they wait for the schedule
        _report(channel, [report_one(1, JOB_ID, 9, "seq", 1, count(routed_experts(0, 1)), epoch=epoch)])
    request = plan_pb2.FetchPlanRequest(job_id=JOB_ID, step=9, wait_ms=60_000, epoch=epoch)
    with contextlib.ExitStack() as stack:
        stubs = [
            plan_pb2_grpc.PlanServiceStub(stack.enter_context(open_channel(target.address, target.credentials)))
            for _ in range(8)
        ]
        waiting: list[Any] = []
        while True:
            ended = {each.code().name for each in waiting if each.done()}
            waiting = [each for each in waiting if not each.done()]
            missing = range(num_calls - len(waiting))
            waiting += [stubs[index % len(stubs)].FetchPlan.future(request, timeout=600) for index in missing]
            yield ", ".join(sorted(ended))


def reports_of_execution(target: Target) -> Iterator[str]:
    """Report what ranks did in as many cells as a step may have, again and again."""
    epoch = _register(target)
    load_ML = np.ones(((1 << 16) // MODEL.num_layers, MODEL.num_layers), dtype=np.int64)
    report = ExecutionReport(
        step=1,
        phase=Phase.UPDATE,
        ep_group=0,
        ep_rank=0,
        applied=None,
        reason="x" * 4096,
        realised_load_ML=load_ML,
        reorder_sent_bytes=0,
        replica_sent_bytes=0,
        plan_wait_s=0.0,
    )
    request = messages.encode_execution_report(JOB_ID, report, epoch)
    with open_channel(target.address, target.credentials) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        yield from _many_at_once(lambda _: stub.ReportExecution.future(request, timeout=600))


def _raw_connections(stack: contextlib.ExitStack, target: Target, number: int) -> list[RawConnection]:
    return [stack.enter_context(RawConnection(target.address)) for _ in range(number)]


def _register(target: Target) -> int:
    with PlannerClient(target.address, credentials=target.credentials) as client:
        return client.register_job(JOB_ID, MODEL, CLUSTER, PARAMS)


def _report(channel: grpc.Channel, requests: list[routing_pb2.ReportRoutingRequest]) -> None:
    for start in range(0, len(requests), 512):
        part = requests[start : start + 512]
        for ordinal, each in enumerate(part, start=1):
            each.ordinal = ordinal
        refused = [each for answer in open_stream(channel, iter(part)) for each in answer.refused]
        assert not refused, refused[0]


def _schedule_request(step: int, ids: list[str], epoch: int) -> plan_pb2.SubmitScheduleRequest:
    schedule = messages.encode_schedule(ids, Schedule.round_robin(len(ids), 2, CLUSTER))
    return plan_pb2.SubmitScheduleRequest(job_id=JOB_ID, step=step, schedule=schedule, epoch=epoch)


def _answer_of_stream(channel: grpc.Channel, request: routing_pb2.ReportRoutingRequest) -> str:
    try:
        refused = [each for answer in open_stream(channel, iter([request])) for each in answer.refused]
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return str(refused[0].message) if refused else ""


def _submit(channel: grpc.Channel, request: plan_pb2.SubmitScheduleRequest) -> Any:
    """Begin to submit a schedule in parts, as the client of relibra does."""
    data = request.SerializeToString()
    starts = range(0, len(data), MAX_PART_SIZE_BYTES)
    parts = [data[start : start + MAX_PART_SIZE_BYTES] for start in starts]
    method = channel.stream_unary("/relibra.v1.PlanService/SubmitSchedule", request_serializer=bytes)
    return method.future(iter(parts), timeout=600)


def _many_at_once(call: Callable[[int], Any]) -> Iterator[str]:
    """Keep many calls open; `call(n)` begins call n, counted from 1."""
    number = 0
    calls: deque[Any] = deque()
    while True:
        while len(calls) < _NUM_IN_FLIGHT:
            number += 1
            calls.append(call(number))
        yield str(calls.popleft().details() or "")
