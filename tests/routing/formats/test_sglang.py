import base64
import functools

import numpy as np
import pytest

from harness.engine_payloads import ALL_MOE, DENSE_FIRST, all_layers, areal, routes, sglang
from relibra.errors import InvalidInput
from relibra.routing import ModelLayers, formats
from relibra.routing.responses import decode_response

decode = functools.partial(formats.decode, format_name="sglang")


def test_another_model_than_the_engines_is_noticed_although_no_shape_is_sent():
    payload = sglang(routes(0, 30, DENSE_FIRST), DENSE_FIRST)
    for layers, message in [
        (ModelLayers.uniform(num_layers=7, num_experts=64, top_k=4), "expected rows of 28 ids"),
        (
            ModelLayers.uniform(num_layers=2, num_experts=64, top_k=8),
            "expected 8 different experts per token and layer",
        ),
        (ModelLayers.uniform(num_layers=4, num_experts=64, top_k=4), "MoE layer 0: expected routes, got zeros only"),
        (ModelLayers.uniform(num_layers=4, num_experts=16, top_k=4), "expected expert ids 0 to 15"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            decode(payload, layers)
    with pytest.raises(InvalidInput, match="expected 10 rows"):
        decode(payload, DENSE_FIRST, num_tokens=11)


def test_what_is_not_int32_in_base64_is_refused():
    for payload, message in [
        (base64.b64encode(b"abc").decode(), "expected whole int32 numbers, got 3 bytes"),
        ("%%%%", "expected base64"),
        ("\u00e9", "expected base64"),
        (areal(routes(0, 3, ALL_MOE), ALL_MOE)[:, :-1], r"rows of 6 ids .*got \[3, 5\]"),
        (np.zeros(12, np.float32), "an array of integers, got float32"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            decode(payload, ALL_MOE)


@pytest.mark.parametrize("dtype", ["int32", "uint16", "uint8"])
def test_a_response_may_name_a_narrower_dtype(dtype):
    ids_TXK = all_layers(routes(0, 5, DENSE_FIRST), DENSE_FIRST, dtype)
    meta_info = {"routed_experts": base64.b64encode(ids_TXK.tobytes()).decode(), "routed_experts_dtype": dtype}
    (routing,) = decode_response({"meta_info": meta_info}, DENSE_FIRST)
    np.testing.assert_array_equal(routing.routed_TLK, ids_TXK[:, 1:])
    with pytest.raises(InvalidInput, match="routed_experts_dtype: expected int32 or uint16 or uint8, got float16"):
        decode_response({"meta_info": meta_info | {"routed_experts_dtype": "float16"}}, DENSE_FIRST)


def test_flat_arrays_and_torch_tensors_are_taken():
    torch = pytest.importorskip("torch")
    ids_TXK = all_layers(routes(0, 5, DENSE_FIRST), DENSE_FIRST, "int32")
    for payload in (ids_TXK.ravel(), torch.from_numpy(ids_TXK), torch.from_numpy(ids_TXK.ravel())):
        np.testing.assert_array_equal(decode(payload, DENSE_FIRST).routed_TLK, ids_TXK[:, 1:])


def test_a_negative_id_is_never_an_expert():
    ids_TXK = all_layers(routes(0, 5, ALL_MOE), ALL_MOE, "int32")
    ids_TXK[3, 1, 1] = -1
    with pytest.raises(InvalidInput, match=r"routed_experts\[3\]: expected expert ids, or -1 throughout"):
        decode(ids_TXK, ALL_MOE)
