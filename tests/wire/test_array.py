import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from relibra.errors import InvalidInput
from relibra.v1 import array_pb2
from relibra.wire import array

DTYPES = [np.uint8, np.uint16, np.uint32, np.int32, np.int64, np.float64]


@given(
    npst.arrays(
        dtype=st.sampled_from([np.dtype(each).newbyteorder(order) for each in DTYPES for order in "<>"]),
        shape=npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
def test_arrays_survive_the_wire(value: np.ndarray) -> None:
    data = array.encode(value).SerializeToString()
    decoded = array.decode(array_pb2.Array.FromString(data), "field", kinds="uif", shape=(None,) * value.ndim)
    np.testing.assert_array_equal(decoded, value)
    assert decoded.dtype == value.dtype.newbyteorder("<")


def test_decoded_arrays_are_read_only() -> None:
    message = array.encode(np.arange(4, dtype=np.int32))
    assert not array.decode(message, "field", kinds="i", shape=(4,)).flags.writeable


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (array_pb2.Array(shape=[2], data=b"ab"), r"field.dtype: expected one of uint8, .*got code 0"),
        (array_pb2.Array(dtype=array_pb2.D_TYPE_FLOAT64, shape=[0]), r"field.dtype: .* got float64"),
        (array_pb2.Array(dtype=99, shape=[2], data=b"ab"), r"field.dtype: .* got code 99"),  # type: ignore[arg-type]
        (array_pb2.Array(dtype=array_pb2.D_TYPE_UINT8, shape=[3], data=b"abc"), r"field.shape: expected \[2\]"),
        (array_pb2.Array(dtype=array_pb2.D_TYPE_UINT8, data=b"ab"), r"field.shape: .* got \[\]"),
        (array_pb2.Array(dtype=array_pb2.D_TYPE_UINT8, shape=[2, 1], data=b"ab"), r"field.shape: .* got \[2, 1\]"),
        (array_pb2.Array(dtype=array_pb2.D_TYPE_UINT8, shape=[2], data=b"a"), r"field.data: expected 2 bytes, got 1"),
        (array_pb2.Array(dtype=array_pb2.D_TYPE_UINT16, shape=[2], data=b"ab"), r"field.data: expected 4 bytes, got 2"),
    ],
)
def test_malformed_arrays_are_refused_by_name(message: array_pb2.Array, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        array.decode(message, "field", kinds="u", shape=(2,))


@given(
    st.builds(
        array_pb2.Array,
        dtype=st.integers(0, 8),
        shape=st.lists(st.sampled_from([0, 1, 2, 2**31, 2**32 - 1]), max_size=5),
        data=st.binary(max_size=16),
    ),
    st.lists(st.none() | st.integers(0, 2), max_size=5),
)
@example(array_pb2.Array(dtype=array_pb2.D_TYPE_UINT16, shape=[0, 1 << 31, 1 << 31]), [None, None, None])
def test_S7_any_message_decodes_or_is_refused(message: array_pb2.Array, shape: list[int | None]) -> None:
    try:
        value = array.decode(message, "field", kinds="iuf", shape=tuple(shape))
    except InvalidInput:
        return
    assert value.nbytes == len(message.data)


WHOLE = zlib.compress(bytes(24))


@pytest.mark.parametrize(
    ("deflated", "fault"),
    [
        (b"", "expected a whole zlib stream, got one that is cut short"),
        (b"not zlib", "expected a zlib stream, got .*incorrect header"),
        (WHOLE[:-4], "expected a whole zlib stream, got one that is cut short"),
        (WHOLE[:-1] + b"?", "expected a zlib stream, got .*incorrect data check"),
        (WHOLE + b"abc", "expected a whole zlib stream, got one with 3 bytes behind it"),
        (zlib.compress(bytes(23)), "expected 24 bytes, got 23 bytes"),
        (zlib.compress(bytes(25)), "expected 24 bytes, got 25 bytes"),
    ],
)
def test_S7_deflated_arrays_of_another_size_or_damaged_are_refused(deflated: bytes, fault: str) -> None:
    message = array.array_of_stream(np.dtype("<u4"), (6,), WHOLE)
    np.testing.assert_array_equal(array.decode(message, "field", kinds="u", shape=(6,)), np.zeros(6))
    message.data = deflated
    with pytest.raises(InvalidInput, match=f"field.data: {fault}"):
        array.decode(message, "field", kinds="u", shape=(6,))


@pytest.mark.parametrize("shape", [(6,), (2**28 + 1,)])
def test_S7_a_bomb_takes_no_more_memory_than_its_shape_says_or_than_may_be(shape: tuple[int, ...]) -> None:
    message = array.array_of_stream(np.dtype("<u4"), shape, zlib.compress(bytes(64 << 20), 9))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"field\.(data: expected 24|shape: expected at most)"):
            array.decode(message, "field", kinds="u", shape=(None,))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_S7_a_shape_of_a_million_extents_is_refused_in_a_short_text() -> None:
    message = array_pb2.Array(dtype=array_pb2.D_TYPE_UINT8, shape=[1] * 10**6, data=b"a")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=r"field.shape: expected \[1\], got \[1, 1, 1, 1, 1, 1, 1, 1\]"):
            array.decode(message, "field", kinds="u", shape=(1,))
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()
