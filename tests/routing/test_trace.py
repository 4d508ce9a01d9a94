from dataclasses import replace

import numpy as np
import pytest

from relibra.errors import InvalidTrace
from relibra.routing import RoutingTrace


@pytest.fixture
def trace():
    return RoutingTrace(
        routed_experts=np.array([[[0, 1]], [[2, 3]], [[1, 2]]], dtype=np.uint8),
        offsets=np.array([0, 1, 3]),
        num_experts=4,
        micro_batch=np.array([0, 1], dtype=np.int32),
        source_rank=np.array([3, 2], dtype=np.int32),
    )


def test_sizes_and_schedule(trace):
    assert (trace.num_sequences, trace.num_layers, trace.top_k) == (2, 1, 2)
    np.testing.assert_array_equal(trace.schedule.micro_batch_S, [0, 1])
    np.testing.assert_array_equal(trace.schedule.ep_group_S, [0, 0])
    grouped = replace(trace, ep_group=np.array([1, 0], dtype=np.int32))
    np.testing.assert_array_equal(grouped.schedule.ep_group_S, [1, 0])
    assert replace(trace, micro_batch=None, source_rank=None).schedule is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routed_experts": np.zeros((3, 2), np.uint8)}, r"routed_experts: expected uint8 or uint16 \[T, L, K\]"),
        ({"routed_experts": np.zeros((3, 1, 2), np.int32)}, "routed_experts: expected uint8 or uint16"),
        ({"routed_experts": np.zeros((3, 1, 0), np.uint8)}, "at least one layer and one expert per token"),
        ({"num_experts": 0}, "num_experts: expected at least 1, got 0"),
        ({"num_experts": 1}, "routed_experts: expected at most num_experts = 1 experts per token, got 2"),
        ({"num_experts": 3}, "routed_experts: expected expert ids below num_experts = 3, got expert 3"),
        ({"offsets": np.array([0, 1, 3], np.int32)}, r"offsets: expected int64 \[S \+ 1\]"),
        ({"offsets": np.array([0])}, "at least one sequence"),
        ({"offsets": np.array([[0, 1, 3]])}, r"offsets: expected int64 \[S \+ 1\]"),
        ({"offsets": np.array([0, 4, 3])}, r"offsets\[2\]: expected at least the offset before it, 4, got 3"),
        (
            {"offsets": np.array([0, 1, 2])},
            "offsets: expected to run from 0 to the 3 rows of routed_experts, got 0 to 2",
        ),
        ({"offsets": np.array([1, 1, 3])}, "got 1 to 3"),
        ({"domain": np.array(["a"])}, r"domain: expected str \[2\], got <U1 \(1,\)"),
        ({"domain": np.array([1, 2])}, r"domain: expected str \[2\]"),
        ({"micro_batch": np.array([0, 1])}, r"micro_batch: expected int32 \[2\], got int64"),
        ({"source_rank": np.array([0], np.int32)}, r"source_rank: expected int32 \[2\], got int32 \(1,\)"),
        ({"source_rank": np.array([0, -1], np.int32)}, "source_rank: expected at least 0, got -1"),
        ({"source_rank": None}, "source_rank: expected to come with micro_batch"),
        ({"micro_batch": None}, "micro_batch: expected to come with source_rank"),
        (
            {"micro_batch": None, "source_rank": None, "ep_group": np.array([0, 0], np.int32)},
            "micro_batch: expected to come with ep_group",
        ),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused_by_name(trace, change, message):
    with pytest.raises(InvalidTrace, match=message):
        replace(trace, **change)


def test_an_empty_sequence_is_a_sequence(trace):
    assert replace(trace, offsets=np.array([0, 0, 3])).num_sequences == 2
