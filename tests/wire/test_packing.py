import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Freedom, Schedule
from relibra.planning.schedule import PackingRules
from relibra.v1 import plan_pb2
from relibra.wire import array
from relibra.wire.packing import decode_pack_request, decode_packed, encode_pack_request, encode_packed

CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)
START = Schedule.round_robin(4, 2, CLUSTER)
FIELDS = ("micro_batch_S", "source_rank_S", "ep_group_S")


def request(**changed: NDArray[np.generic]) -> plan_pb2.PackRequest:
    """Return a sound request in which some arrays are others."""
    made = encode_pack_request("job", 1, list("abcd"), np.arange(4), START, PackingRules())
    for field, value in changed.items():
        getattr(made, field).CopyFrom(array.encode(value))
    return made


@given(
    rules=st.builds(
        PackingRules,
        freedom=st.sampled_from(Freedom),
        keeps_counts=st.booleans(),
        token_budget=st.none() | st.integers(0, 2**63),
    ),
    length=st.lists(st.integers(0, 2**20), min_size=1, max_size=20),
)
def test_requests_to_pack_survive_the_wire(rules: PackingRules, length: list[int]) -> None:
    ids, start = [f"s{index}" for index in range(len(length))], Schedule.round_robin(len(length), 2, CLUSTER)
    data = encode_pack_request("job", 9, ids, np.array(length, np.int32), start, rules, 7).SerializeToString()
    message = plan_pb2.PackRequest.FromString(data)
    assert (message.job_id, message.step, message.epoch) == ("job", 9, 7)
    got_ids, length_S, got, got_rules = decode_pack_request(message, CLUSTER)
    assert (got_ids, length_S.tolist(), got_rules) == (ids, length, rules)
    assert all(np.array_equal(getattr(got, field), getattr(start, field)) for field in FIELDS)


def test_packed_schedules_survive_the_wire() -> None:
    data = encode_packed(START, "packing gains").SerializeToString()
    schedule, reason = decode_packed(plan_pb2.PackResponse.FromString(data), 4)
    assert reason == "packing gains"
    assert all(np.array_equal(getattr(schedule, field), getattr(START, field)) for field in FIELDS)
    with pytest.raises(InvalidInput, match=r"packed.micro_batch.shape: expected \[5\], got \[4\]"):
        decode_packed(plan_pb2.PackResponse.FromString(data), 5)


@pytest.mark.parametrize(
    ("length", "fault"),
    [
        (np.array([1, 2, 3, -1]), "length: expected tokens, at least 0, got -1"),
        (np.array([1, 2, 3]), r"length.shape: expected \[4\], got \[3\]"),
        (np.array([1.0, 2.0, 3.0, 4.0]), "length.dtype"),
        (np.full(4, 2**62), "length: expected at most 2147483647 tokens in all"),
    ],
)
def test_S7_lengths_that_cannot_be_are_refused(length: NDArray[np.generic], fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        decode_pack_request(request(length=length), CLUSTER)


def test_a_freedom_of_a_later_version_is_refused() -> None:
    message = request()
    message.freedom = 7  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="freedom: expected micro-batches or ranks"):
        decode_pack_request(message, CLUSTER)
