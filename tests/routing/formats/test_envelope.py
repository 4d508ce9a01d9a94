import functools

import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST, WIDE, routes, skyrl
from relibra.errors import InvalidInput, LimitExceeded
from relibra.routing import formats

decode = functools.partial(formats.decode, format_name="skyrl")


def test_start_comes_from_the_request():
    payload = skyrl(routes(0, 10, DENSE_FIRST), DENSE_FIRST)
    assert decode(payload, DENSE_FIRST, start=5).position_T[0] == 5


def test_S7_a_start_far_away_is_refused_before_anything_of_that_size_is_made():
    payload = skyrl(routes(0, 10, DENSE_FIRST), DENSE_FIRST)
    for start in (1 << 24, 1 << 40, 1 << 70):
        with pytest.raises(LimitExceeded, match="tokens are more than the 16777216 that a sequence may have"):
            decode(payload, DENSE_FIRST, start=start)


def test_wide_models_come_as_int16():
    routed_TLK = routes(0, 10, WIDE)
    routed_TLK[0, 0, 0] = 383
    payload = skyrl(routed_TLK, WIDE)
    assert payload["dtype"] == "int16"
    np.testing.assert_array_equal(decode(payload, WIDE).routed_TLK, routed_TLK)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dtype": "float32"}, "routed_experts.dtype: expected uint8 or .*got 'float32'"),
        ({"dtype": ["uint8"]}, "routed_experts.dtype"),
        ({"shape": [10, 4]}, r"expected 40 bytes for uint8 \[10, 4\], got 160 bytes"),
        ({"shape": [1 << 60, 4, 4]}, "expected 18446744073709551616 bytes"),
        ({"shape": [-10, 4, -4]}, "routed_experts.shape: expected whole numbers"),
        ({"shape": [True, 40, 4]}, "routed_experts.shape: expected whole numbers"),
        ({"shape": "10x4x4"}, "routed_experts.shape: expected a list of three numbers"),
        ({"data": 7}, "routed_experts.data: expected base64, got int"),
    ],
)
def test_S7_malformed_objects_are_refused_by_name(changed, message):
    with pytest.raises(InvalidInput, match=message):
        decode(skyrl(routes(0, 10, DENSE_FIRST), DENSE_FIRST) | changed, DENSE_FIRST)
    with pytest.raises(InvalidInput, match="expected an object with data, shape, dtype, got"):
        decode({"data": ""}, DENSE_FIRST)
