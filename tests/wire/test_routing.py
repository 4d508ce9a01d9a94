import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.planning import Model
from relibra.planning.load import narrow_counts
from relibra.v1 import routing_pb2
from relibra.wire import array
from relibra.wire.routing import MAX_NUM_ROWS, MAX_SEQUENCE_ID_SIZE_BYTES, decode_counts, encode_sequence

MODEL = Model(num_layers=2, num_experts=3, top_k=2)
COUNTS_LE = np.array([[4, 3, 3], [5, 5, 0]], dtype=np.uint8)


def report(**change: object) -> routing_pb2.SequenceRouting:
    message = encode_sequence(2, "seq", 5, COUNTS_LE)
    for field, value in change.items():
        if isinstance(value, np.ndarray):
            message.counts.CopyFrom(array.encode(value))
        else:
            setattr(message, field, value)
    return message


@given(st.integers(0, MAX_NUM_ROWS), st.data())
def test_counts_survive_the_wire_in_their_narrowest_dtype(num_rows: int, data: st.DataObject) -> None:
    first_L = [data.draw(st.integers(0, num_rows)) for _ in range(2)]
    counts_LE = narrow_counts(np.array([[first, 2 * num_rows - first, 0] for first in first_L], dtype=np.uint32))
    request = encode_sequence(1, "seq", num_rows, counts_LE)
    decoded_LE = decode_counts(routing_pb2.SequenceRouting.FromString(request.SerializeToString()), MODEL)
    np.testing.assert_array_equal(decoded_LE, counts_LE)
    assert decoded_LE.dtype == np.min_scalar_type(int(counts_LE.max()))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"counts": COUNTS_LE[:1]}, r"counts.shape: expected \[2, 3\], got \[1, 3\]"),
        ({"counts": COUNTS_LE.astype(np.int32)}, r"counts.dtype: expected one of uint8, uint16, uint32, got int32"),
        ({"counts": COUNTS_LE.astype(np.float64)}, r"counts.dtype: .* got float64"),
        ({"num_rows": 6}, r"counts\[0\]: expected a sum of 12 \(6 rows x top 2\), got 10"),
        ({"counts": COUNTS_LE + np.array([[0], [1]], dtype=np.uint8)}, r"counts\[1\]: expected a sum of 10 .* got 13"),
        ({"counts": np.full((2, 3), 2**32 - 1, dtype=np.uint32)}, r"counts\[0\]: .* got 12884901885"),
        ({"num_rows": 2**64 - 1}, r"num_rows: expected at most"),
        ({"sequence_id": ""}, r"sequence_id: expected 1 to 200 bytes, got 0"),
        ({"sequence_id": "é" * MAX_SEQUENCE_ID_SIZE_BYTES}, r"sequence_id: .* got 400 bytes"),
    ],
)
def test_bad_reports_are_refused_by_name(change: dict[str, object], fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        decode_counts(report(**change), MODEL)


def test_counts_that_came_wider_than_needed_are_the_same_counts() -> None:
    decoded_LE = decode_counts(report(counts=COUNTS_LE.astype(np.uint32)), MODEL)
    np.testing.assert_array_equal(decoded_LE, COUNTS_LE)
    assert decoded_LE.dtype == np.uint8
