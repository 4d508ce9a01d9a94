import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.routing.npy_header import read_npy_header


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_header_of_an_array_is_read_and_its_data_is_left(order: str) -> None:
    array = np.asarray([[1, 2, 3], [4, 5, 6]], dtype="<i4", order=order)
    stream = io.BytesIO(saved(array))
    assert read_npy_header(stream, "x") == ((2, 3), order == "F", np.dtype("<i4"))
    assert stream.read() == array.tobytes(order)


@pytest.mark.filterwarnings("ignore")  # Python's parser warns of what it reads nevertheless
@given(at=st.integers(0, 127), byte=st.integers(0, 255))
def test_S7_a_damaged_header_ends_in_no_other_exception(at: int, byte: int) -> None:
    data = bytearray(saved(np.zeros(3, dtype=np.int16)))
    data[at] = byte
    with contextlib.suppress(InvalidInput):
        read_npy_header(io.BytesIO(bytes(data)), "x")


@pytest.mark.parametrize(
    "data", [b"", b"\x93NUMPY", b"\x93NUMPY\x07\x00", b"PK\x03\x04", b"\x93NUMPY\x01\x00\x01\x00{"]
)
def test_S7_what_has_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"x: expected a \.npy file, got"):
        read_npy_header(io.BytesIO(data), "x")
