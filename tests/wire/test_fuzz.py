"""Every decoder of the wire on arbitrary messages: it returns a value or a named error, in memory like the message."""

import contextlib
import os
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.step_plan_message import encode_step_plan
from relibra.errors import InvalidInput
from relibra.planning import (
    Cluster,
    CostModel,
    ExecutionReport,
    Freedom,
    Model,
    Phase,
    PlanId,
    PlanParams,
    Replicas,
    Schedule,
    StepPlan,
)
from relibra.planning.schedule import PackingRules
from relibra.v1 import array_pb2, execution_pb2, job_pb2, plan_pb2, routing_pb2
from relibra.wire import array, messages, packing, routing
from relibra.wire.launch import this_launch

NUM_CASES = int(os.environ.get("RELIBRA_FUZZ_CASES", "50"))
MODEL = Model(num_layers=3, num_experts=8, top_k=2)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)
MAX_SIZE_BYTES = 1 << 20
"""The limit for messages of some hundred bytes; false shapes may ask for 2**64 bytes and must not get them."""

INDEX_Q4 = np.array([[0, 0, 1, 2], [0, 1, 3, 1], [1, 2, 0, 3]], dtype=np.int32)
GOOD: dict[str, tuple[Message, Callable[[Any], object]]] = {
    "registration": (
        messages.encode_registration("job", MODEL, CLUSTER, PlanParams(seed=3, cost=CostModel()), this_launch(), 7),
        messages.decode_registration,
    ),
    "schedule": (
        messages.encode_schedule(["a", "b", "c", "d"], Schedule.round_robin(4, 2, CLUSTER)),
        lambda message: messages.decode_schedule(message, CLUSTER),
    ),
    "pack request": (
        packing.encode_pack_request(
            "job",
            1,
            ["a", "b", "c", "d"],
            np.array([5, 6, 7, 8]),
            Schedule.round_robin(4, 2, CLUSTER),
            PackingRules(freedom=Freedom.RANKS, keeps_counts=True, token_budget=20),
        ),
        lambda message: packing.decode_pack_request(message, CLUSTER),
    ),
    "packed": (
        packing.encode_packed(Schedule.round_robin(4, 2, CLUSTER), "packing gains"),
        lambda message: packing.decode_packed(message, 4),
    ),
    "rank plan": (
        encode_step_plan(
            StepPlan(
                id=PlanId(epoch=5, version=2),
                step=9,
                digest=bytes(32),
                home_rank_LE=np.zeros((3, 8), np.int32),
                replicas=Replicas.of(INDEX_Q4, 2, 3),
                num_micro_batches=1,
                reason="balanced",
            )
        ),
        lambda message: messages.decode_step_plan(message, MODEL),
    ),
    "execution": (
        messages.encode_execution_report(
            "job",
            ExecutionReport(
                step=1,
                phase=Phase.UPDATE,
                ep_group=1,
                ep_rank=2,
                applied=PlanId(epoch=5, version=2),
                reason="as planned",
                realised_load_ML=np.arange(6, dtype=np.int64).reshape(2, 3),
                reorder_sent_bytes=5,
                replica_sent_bytes=6,
                plan_wait_s=0.25,
            ),
        ),
        lambda message: messages.decode_execution_report(message, MODEL, CLUSTER),
    ),
    "counts": (
        routing.encode_sequence(1, "seq", 4, np.ones((3, 8), np.uint8), (3, 4)),
        lambda message: routing.decode_counts(message, MODEL),
    ),
    "policies": (
        routing.encode_sequence(1, "seq", 4, np.ones((3, 8), np.uint8), (3, 4)),
        routing.decode_policies,
    ),
    "array": (
        array.encode(np.arange(12, dtype=np.int32).reshape(3, 4)),
        lambda message: array.decode(message, "field", kinds="iuf", shape=(None, None)),
    ),
}
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 2**16, 2**31, 2**32 - 1])
DATA = st.binary(max_size=64) | st.sampled_from([bytes(24), bytes(32), bytes(96), b"\xff" * 48])
SIZE_OF_BOMB_BYTES = 64 << 20
BOMB = zlib.compress(bytes(SIZE_OF_BOMB_BYTES), 9)
"""64 KiB of zlib stream inflate to 64 MiB."""
SHAPES = st.lists(SIZES, max_size=4)
# The size that a bomb may legitimately inflate to is small here.
SHAPES_OF_STREAMS = st.lists(SIZES.filter(lambda size: size != 2**16), max_size=4)
STREAMS = DATA.map(zlib.compress) | st.just(BOMB)


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    """Zlib streams that are cut short, go on, or are followed by another stream."""
    stream = draw(STREAMS)
    return stream[: draw(st.integers(0, len(stream)))] + draw(st.binary(max_size=8) | STREAMS)


ARRAYS = st.builds(
    array_pb2.Array, dtype=st.integers(0, 7), shape=SHAPES, data=DATA, deflated=st.booleans()
) | st.builds(
    array_pb2.Array,
    dtype=st.integers(0, 7),
    shape=SHAPES_OF_STREAMS | st.sampled_from([[4], [3, 4], [2, 3], [3, 8], [24]]),
    data=STREAMS | damaged_streams(),
    deflated=st.just(True),
)
NUMBERS = st.sampled_from([0, 1, 2, 3, 8, 2**31 - 1, 2**32 - 1])
LONG_NUMBERS = NUMBERS | st.sampled_from([2**53, 2**63 - 1, 2**64 - 1])
LIES: dict[str, st.SearchStrategy[Message]] = {
    "registration": st.builds(
        job_pb2.RegisterJobRequest,
        job_id=st.sampled_from(["job", "", "a" * 99]),
        model=st.builds(
            job_pb2.Model,
            num_layers=NUMBERS,
            num_experts=NUMBERS,
            top_k=NUMBERS,
            expert_weight_size_bytes=LONG_NUMBERS,
            expert_state_size_bytes=LONG_NUMBERS,
        ),
        cluster=st.builds(
            job_pb2.Cluster,
            num_nodes=NUMBERS,
            gpus_per_node=NUMBERS,
            redundant_slots=NUMBERS,
            num_ep_groups=NUMBERS,
        ),
    ),
    "schedule": st.builds(
        plan_pb2.Schedule,
        sequence_ids=st.lists(st.text(max_size=3), max_size=4),
        micro_batch=ARRAYS,
        source_rank=ARRAYS,
        ep_group=ARRAYS,
    ),
    "pack request": st.builds(
        plan_pb2.PackRequest,
        start=st.builds(
            plan_pb2.Schedule,
            sequence_ids=st.lists(st.text(max_size=3), max_size=4),
            micro_batch=ARRAYS,
            source_rank=ARRAYS,
            ep_group=ARRAYS,
        ),
        length=ARRAYS,
        freedom=st.integers(0, 3),
        token_budget=st.none() | LONG_NUMBERS,
    ),
    "packed": st.builds(plan_pb2.PackResponse, micro_batch=ARRAYS, source_rank=ARRAYS, ep_group=ARRAYS),
    "rank plan": st.builds(
        plan_pb2.StepPlan,
        home_rank=st.just(array.encode(np.zeros((3, 8), np.uint8))) | ARRAYS,
        replica_count=ARRAYS,
        replica_expert=ARRAYS,
        replica_rank=ARRAYS,
        num_micro_batches=NUMBERS,
        level=st.integers(0, 3),
    ),
    "execution": st.builds(
        execution_pb2.ReportExecutionRequest,
        phase=st.integers(0, 3),
        ep_group=NUMBERS,
        ep_rank=NUMBERS,
        realised_load=ARRAYS,
        expert_load=ARRAYS,
        plan_wait_s=st.floats(),
        reorder_s=st.floats(),
        replica_wait_s=st.floats(),
        duration_s=st.floats(),
        num_processes=st.integers(0, 2**32 - 1),
    ),
    "counts": st.builds(
        routing_pb2.SequenceRouting, sequence_id=st.text(max_size=3), num_rows=LONG_NUMBERS, counts=ARRAYS
    ),
    "policies": st.builds(
        routing_pb2.SequenceRouting,
        first_policy_version=st.none() | LONG_NUMBERS,
        last_policy_version=st.none() | LONG_NUMBERS,
    ),
    "array": ARRAYS,
}
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(-1, 255), st.booleans()), min_size=1, max_size=8)


def decode_or_refuse(decode: Callable[[Any], object], message: Message) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidInput):
            decode(message)
        assert tracemalloc.get_traced_memory()[1] < MAX_SIZE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", GOOD)
@settings(max_examples=NUM_CASES)
@given(data=st.data())
def test_S7_messages_that_lie_are_read_or_refused_by_name(name: str, data: st.DataObject) -> None:
    decode_or_refuse(GOOD[name][1], data.draw(LIES[name]))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", GOOD)
@settings(max_examples=NUM_CASES)
@given(changes=CHANGES)
def test_S7_damaged_bytes_are_read_or_refused_by_name(name: str, changes: list[tuple[float, int, bool]]) -> None:
    message, decode = GOOD[name]
    damaged = bytearray(message.SerializeToString())
    for where, byte, is_new in changes:
        at = int(where * len(damaged))
        # Inserts, overwrites or removes a byte.
        damaged[at : at + (not is_new)] = bytes([byte]) if byte >= 0 else b""
    try:
        changed = type(message).FromString(bytes(damaged))
    except DecodeError:
        return  # refused by `call_interceptor`, as an `InvalidInput`
    decode_or_refuse(decode, changed)
