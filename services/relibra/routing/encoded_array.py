"""Arrays inside text and bytes: base64, raw bytes of a known shape, and `.npy` files; never pickle.

Sizes are checked before anything of that size is allocated (S7).
"""

import binascii
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, LimitExceeded
from relibra.routing.npy_header import read_npy_header

try:  # several times faster than base64; vLLM and SGLang bring it along
    from pybase64 import b64decode
except ImportError:
    from base64 import b64decode  # type: ignore[assignment]

MAX_PAYLOAD_SIZE_BYTES = 1 << 30
"""The largest array of one sequence: 2.8 million tokens of 48 layers, top 8, as uint8."""


def base64_to_bytes(text: str | bytes, field: str) -> bytes:
    """Decode base64 strictly.

    Raises:
        InvalidInput: a character or the length is not valid in base64.
        LimitExceeded: the data is larger than `MAX_PAYLOAD_SIZE_BYTES`.
    """
    if len(text) // 4 * 3 > MAX_PAYLOAD_SIZE_BYTES + 2:
        raise LimitExceeded(
            f"{field}: {len(text)} characters of base64 hold more than the {MAX_PAYLOAD_SIZE_BYTES} bytes that a "
            "sequence may have"
        )
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidInput.of(field, expected="base64", got=error) from error


def bytes_to_array(
    data: bytes | bytearray | memoryview, dtype: np.dtype[Any], shape: Sequence[int], field: str
) -> NDArray[Any]:
    """View little-endian, C-ordered bytes as an array of the shape that came with them.

    Raises:
        InvalidInput: the shape is malformed or does not match the number of bytes.
    """
    if len(shape) > 8 or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape):
        raise InvalidInput.of(f"{field}.shape", expected="whole numbers of at least 0", got=str(list(shape))[:100])
    expected_size_bytes = math.prod(shape) * dtype.itemsize
    if len(data) != expected_size_bytes:
        raise InvalidInput.of(
            field, expected=f"{expected_size_bytes} bytes for {dtype} {list(shape)}", got=f"{len(data)} bytes"
        )
    return np.frombuffer(data, dtype=dtype.newbyteorder("<")).reshape(shape)


def npy_to_array(data: bytes, field: str) -> NDArray[Any]:
    """View the array in a whole `.npy` file.

    Raises:
        InvalidInput: the data is not a `.npy` file of integers or booleans, or does not match its header.
    """
    file = io.BytesIO(data)
    shape, is_fortran, dtype = read_npy_header(file, field)
    if dtype.kind not in "iub":
        raise InvalidInput.of(field, expected="a .npy file of integers", got=dtype)
    body = memoryview(data)[file.tell() :]
    array = bytes_to_array(body, dtype, shape[::-1] if is_fortran else shape, field)
    return array.T if is_fortran else array
