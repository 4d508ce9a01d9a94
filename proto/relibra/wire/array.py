"""numpy arrays as bytes + shape + dtype, checked before anything is allocated (S7)."""

import math
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
_NAMES = {dtype: number for number, dtype in _DTYPES.items()}


def encode(value: NDArray[np.generic]) -> array_pb2.Array:
    """Encode an array of one of the wire's dtypes; others are a programming error (`KeyError`)."""
    dtype = value.dtype.newbyteorder("<")
    data = np.ascontiguousarray(value, dtype=dtype).tobytes()
    return array_pb2.Array(dtype=array_pb2.DType.Name(_NAMES[dtype]), shape=value.shape, data=data)


def decode(message: array_pb2.Array, field: str, *, kinds: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Decode an array without copying it; the result is read-only.

    Args:
        message: the array as it came.
        field: what to call it in an error.
        kinds: allowed numpy dtype kinds, for example `"u"` or `"iu"`.
        shape: expected extents; None where any is allowed.

    Raises:
        InvalidInput: the dtype, the shape or the number of bytes is not what was expected.
    """
    dtype = _DTYPES.get(message.dtype)
    if dtype is None or dtype.kind not in kinds:
        allowed = ", ".join(str(each) for each in _NAMES if each.kind in kinds)
        raise InvalidInput.of(f"{field}.dtype", expected=f"one of {allowed}", got=dtype or f"code {message.dtype}")
    got = tuple(message.shape)
    if len(got) != len(shape) or any(want is not None and want != have for want, have in zip(shape, got, strict=True)):
        wanted = "[" + ", ".join("any" if want is None else str(want) for want in shape) + "]"
        raise InvalidInput.of(f"{field}.shape", expected=wanted, got=list(got))
    size_bytes = math.prod(got) * dtype.itemsize
    if len(message.data) != size_bytes:
        raise InvalidInput.of(f"{field}.data", expected=f"{size_bytes} bytes", got=f"{len(message.data)} bytes")
    return np.frombuffer(message.data, dtype=dtype).reshape(got)
