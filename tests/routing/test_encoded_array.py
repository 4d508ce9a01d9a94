import base64
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput, LimitExceeded
from relibra.routing import encoded_array
from relibra.routing.encoded_array import base64_to_bytes, bytes_to_array


@given(data=st.binary(max_size=40), dtype=st.sampled_from(["int8", "uint16", "<i4"]))
def test_arrays_survive_base64(data, dtype):
    array = np.frombuffer(data[: len(data) // 4 * 4], dtype=dtype)
    back = bytes_to_array(base64_to_bytes(base64.b64encode(array.tobytes()), "x"), array.dtype, array.shape, "x")
    np.testing.assert_array_equal(back, array)


def test_both_base64_libraries_refuse_the_same_text():
    whole = base64.b64encode(bytes(range(200))).decode()
    for text in (whole[:-1], whole[:-4] + "\n" + whole[-4:], "*" + whole, whole + "A", "A", "\u00e9\u00e9\u00e9\u00e9"):
        with pytest.raises(InvalidInput, match="x: expected base64, got"):
            base64_to_bytes(text, "x")
        with pytest.raises(ValueError, match=r"base64|character|[Pp]adding"):
            base64.b64decode(text, validate=True)


def test_S7_text_larger_than_a_sequence_may_be_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(encoded_array, "MAX_PAYLOAD_SIZE_BYTES", 300)
    assert len(base64_to_bytes("A" * 400, "x")) == 300
    with pytest.raises(
        LimitExceeded, match="x: 408 characters of base64 hold more than the 300 bytes that a sequence may have"
    ):
        base64_to_bytes("A" * 408, "x")


def test_without_the_faster_library_the_standard_one_is_used():
    code = (
        "import sys; sys.modules['pybase64'] = None\n"
        "from relibra.routing import encoded_array\n"
        "print(encoded_array.b64decode.__module__, encoded_array.base64_to_bytes('AQID', 'x'))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split(maxsplit=1) == ["base64", "b'\\x01\\x02\\x03'\n"]
