from types import SimpleNamespace

import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST, WIDE, prime_rl, routes, skyrl
from relibra.errors import InvalidInput, LimitExceeded
from relibra.routing import decode as decode_any
from relibra.routing.formats.envelope import decode


def test_the_padded_tail_of_prime_rl_is_not_load_of_expert_0():
    routing = decode(prime_rl(routes(0, 10, DENSE_FIRST), DENSE_FIRST), DENSE_FIRST)
    assert routing.num_rows == 10
    assert routing.num_missing == 4  # three rows of padding and the last token


def test_start_comes_from_the_object_or_the_request_and_they_must_agree():
    payload = skyrl(routes(0, 10, DENSE_FIRST), DENSE_FIRST)
    assert decode(payload | {"start": 5}, DENSE_FIRST).position_T[0] == 5
    assert decode(payload, DENSE_FIRST, start=5).position_T[0] == 5
    with pytest.raises(InvalidInput, match=r"routed_experts\.start: expected 4, as requested, got 5"):
        decode(payload | {"start": 5}, DENSE_FIRST, start=4)


def test_S7_a_start_far_away_is_refused_before_anything_of_that_size_is_made():
    payload = skyrl(routes(0, 10, DENSE_FIRST), DENSE_FIRST)
    for start in (1 << 24, 1 << 40, 1 << 70):
        with pytest.raises(LimitExceeded, match="tokens are more than the 16777216 that a sequence may have"):
            decode(payload | {"start": start}, DENSE_FIRST)


def test_objects_with_these_attributes_are_taken():
    payload = SimpleNamespace(**prime_rl(routes(0, 10, DENSE_FIRST), DENSE_FIRST))
    assert decode(payload, DENSE_FIRST).num_rows == 10
    assert decode_any(payload, DENSE_FIRST).num_rows == 10


def test_wide_models_come_as_int16_from_skyrl_and_uint16_from_prime_rl():
    routed_TLK = routes(0, 10, WIDE)
    routed_TLK[0, 0, 0] = 383
    for payload, dtype in ((skyrl(routed_TLK, WIDE), "int16"), (prime_rl(routed_TLK, WIDE), "uint16")):
        assert payload["dtype"] == dtype
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
        ({"data": 7}, "routed_experts.data: expected base64 or bytes, got int"),
        ({"start": "0"}, "routed_experts.start: expected a whole number"),
    ],
)
def test_S7_malformed_objects_are_refused_by_name(changed, message):
    with pytest.raises(InvalidInput, match=message):
        decode(skyrl(routes(0, 10, DENSE_FIRST), DENSE_FIRST) | changed, DENSE_FIRST)
    with pytest.raises(InvalidInput, match="expected the keys data, shape, dtype, got"):
        decode({"data": ""}, DENSE_FIRST)
