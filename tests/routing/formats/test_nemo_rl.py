import base64
import functools

import numpy as np
import pytest

from harness.engine_payloads import ALL_MOE, HYBRID, count, nemo_rl, routes
from relibra.errors import InvalidInput
from relibra.routing import formats

decode = functools.partial(formats.decode, format_name="nemo-rl")


def test_rows_of_minus_one_are_missing_and_int8_is_not_read_as_uint8():
    routed_TLK = routes(0, 10, HYBRID)
    routed_TLK[0, 0, 0] = 127
    lost_TLK = routed_TLK.copy()
    lost_TLK[[4, 7]] = -1
    routing = decode(nemo_rl(lost_TLK, HYBRID), HYBRID, num_tokens=11)
    np.testing.assert_array_equal(routing.position_T, [0, 1, 2, 3, 5, 6, 8, 9])
    np.testing.assert_array_equal(routing.counts(), count(np.delete(routed_TLK, [4, 7], axis=0), HYBRID))
    assert (routing.num_missing, int(routing.routed_TLK.max())) == (3, 127)


def test_a_row_with_a_part_of_its_routes_is_an_error():
    routed_TLK = routes(0, 10, HYBRID)
    routed_TLK[6, 1] = -1
    with pytest.raises(InvalidInput, match=r"routed_experts\[6\]: expected expert ids, or -1 throughout for no route"):
        decode(nemo_rl(routed_TLK, HYBRID), HYBRID)
    routed_TLK[6] = -2
    with pytest.raises(InvalidInput, match=r"routed_experts\[6\]"):
        decode(nemo_rl(routed_TLK, HYBRID), HYBRID)


def test_padding_to_full_length_is_cut():
    routed_TLK = routes(0, 10, HYBRID)
    padded_TLK = np.concatenate([routed_TLK, np.broadcast_to(np.arange(2), (1, 3, 2))])
    for num_tokens in (None, 11):
        routing = decode(nemo_rl(padded_TLK, HYBRID), HYBRID, num_tokens=num_tokens)
        np.testing.assert_array_equal(routing.routed_TLK, routed_TLK)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("nrlre2:int8:1x3x2:AAAA", "expected nrlre1:<dtype>"),
        ("nrlre1:int8", "expected nrlre1:<dtype>"),
        ("nrlre1:uint8:1x3x2:AAAAAAAA", "routed_experts.dtype: expected int8 or int16 or int32, got 'uint8'"),
        ("nrlre1:object:1x3x2:AAAAAAAA", "routed_experts.dtype"),
        ("nrlre1:int8:1x3:AAAA", "routed_experts.shape: expected <rows>x<layers>x<top-k>"),
        ("nrlre1:int8:-1x3x2:AAAA", "routed_experts.shape"),
        ("nrlre1:int8:²x3x2:AAAA", "routed_experts.shape"),
        ("nrlre1:int8:99999999999x3x2:AAAAAAAA", "expected 599999999994 bytes for int8 .*got 6 bytes"),
        ("nrlre1:int8:" + "9" * 5000 + "x3x2:AAAA", "routed_experts.shape"),
        ([[[1, 2], [3]]], "expected an array of integers"),
        ([[["a"]]], "expected an array of integers"),
    ],
)
def test_S7_malformed_payloads_are_refused_by_name(payload, message):
    with pytest.raises(InvalidInput, match=message):
        decode(payload, ALL_MOE)


def test_int16_and_int32_are_read_as_such():
    routed_TLK = routes(0, 3, ALL_MOE)
    for dtype in ("int16", "int32"):
        data = base64.b64encode(routed_TLK.astype(dtype).tobytes()).decode()
        np.testing.assert_array_equal(decode(f"nrlre1:{dtype}:3x3x2:{data}", ALL_MOE).routed_TLK, routed_TLK)
