"""numpy arrays as bytes + shape + dtype, checked before anything is allocated (S7)."""

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.v1 import array_pb2

_DTYPES: dict[int, np.dtype[np.generic]] = {
    array_pb2.D_TYPE_UINT8: np.dtype("<u1"),
    array_pb2.D_TYPE_UINT16: np.dtype("<u2"),
    array_pb2.D_TYPE_UINT32: np.dtype("<u4"),
    array_pb2.D_TYPE_INT32: np.dtype("<i4"),
    array_pb2.D_TYPE_INT64: np.dtype("<i8"),
    array_pb2.D_TYPE_FLOAT64: np.dtype("<f8"),
}
MAX_SIZE_BYTES = 1 << 30
"""The largest size that a deflated array may grow to."""
_MAX_SHOWN_EXTENTS = 7
_NAMES = {dtype: number for number, dtype in _DTYPES.items()}


def encode(value: NDArray[np.generic]) -> array_pb2.Array:
    """Encode an array of one of the wire's dtypes; another dtype is a programming error (`KeyError`)."""
    dtype = value.dtype.newbyteorder("<")
    data = np.ascontiguousarray(value, dtype=dtype).tobytes()
    return array_pb2.Array(dtype=array_pb2.DType.Name(_NAMES[dtype]), shape=value.shape, data=data)


def deflate(value: NDArray[np.generic]) -> array_pb2.Array:
    """Encode an array like `encode`, deflated."""
    dtype = value.dtype.newbyteorder("<")
    return array_of_stream(
        dtype, value.shape, zlib.compress(np.ascontiguousarray(value, dtype=dtype).tobytes(), level=1)
    )


def array_of_stream(dtype: np.dtype[Any], shape: tuple[int, ...], data: bytes) -> array_pb2.Array:
    """Build the message of an array whose little-endian elements are already a zlib stream."""
    return array_pb2.Array(dtype=array_pb2.DType.Name(_NAMES[dtype]), shape=shape, data=data, deflated=True)


def decode(message: array_pb2.Array, field: str, *, kinds: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Decode an array, without copying it unless it is deflated; the result is read-only.

    Args:
        message: the message of the array.
        field: the name of the array in errors.
        kinds: allowed numpy dtype kinds, for example `"u"` or `"iu"`.
        shape: the expected extents; None allows any extent.

    Raises:
        InvalidInput: the dtype, the shape or the number of bytes is another than expected.
    """
    dtype = _DTYPES.get(message.dtype)
    if dtype is None or dtype.kind not in kinds:
        allowed = ", ".join(str(dtype) for dtype in _NAMES if dtype.kind in kinds)
        raise InvalidInput.of(f"{field}.dtype", expected=f"one of {allowed}", got=dtype or f"code {message.dtype}")
    # A message may claim millions of extents, so no more of them are copied than an error shows.
    got = tuple(message.shape[: max(len(shape), _MAX_SHOWN_EXTENTS) + 1])
    if len(got) != len(shape) or any(want is not None and want != have for want, have in zip(shape, got, strict=True)):
        wanted = "[" + ", ".join("any" if want is None else str(want) for want in shape) + "]"
        raise InvalidInput.of(f"{field}.shape", expected=wanted, got=list(got))
    # numpy refuses an empty array if the product of its other extents is too large.
    if 0 in got and math.prod(filter(None, got)) * dtype.itemsize > MAX_SIZE_BYTES:
        raise InvalidInput.of(f"{field}.shape", expected=f"at most {MAX_SIZE_BYTES} bytes", got=list(got))
    size_bytes = math.prod(got) * dtype.itemsize
    data = _inflate(message.data, size_bytes, field) if message.deflated else message.data
    if len(data) != size_bytes:
        raise InvalidInput.of(f"{field}.data", expected=f"{size_bytes} bytes", got=f"{len(data)} bytes")
    return np.frombuffer(data, dtype=dtype).reshape(got)


def _inflate(data: bytes, size_bytes: int, field: str) -> bytes:
    """Inflate at most one byte more than expected, even if the stream holds more."""
    if size_bytes > MAX_SIZE_BYTES:
        raise InvalidInput.of(f"{field}.shape", expected=f"at most {MAX_SIZE_BYTES} bytes", got=f"{size_bytes} bytes")
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, size_bytes + 1)
    except zlib.error as error:
        raise InvalidInput.of(f"{field}.data", expected="a zlib stream", got=error) from error
    # A stream of the right size may still lack its checksum, and the error for a short one should say why.
    if len(inflated) <= size_bytes and (not stream.eof or stream.unused_data):
        wrong = f"one with {len(stream.unused_data)} bytes behind it" if stream.eof else "one that is cut short"
        raise InvalidInput.of(f"{field}.data", expected="a whole zlib stream", got=wrong)
    return inflated
