import base64
import functools
import io

import numpy as np
import pytest

from harness.engine_payloads import ALL_MOE, DENSE_FIRST, WIDE, all_layers, routes, vllm
from relibra.errors import InvalidInput
from relibra.routing import formats
from relibra.routing.formats.vllm import NPY_IN_BASE64

decode = functools.partial(formats.decode, format_name="vllm")


def _npy(array: np.ndarray, **options: bool) -> str:
    file = io.BytesIO()
    np.save(file, array, **options)
    return base64.b64encode(file.getvalue()).decode()


def test_384_experts_come_as_uint16():
    routed_TLK = routes(0, 20, WIDE)
    routed_TLK[0, 0, 0] = 383
    routing = decode(vllm(routed_TLK, WIDE), WIDE)
    assert routing.routed_TLK.max() == 383
    assert vllm(routed_TLK, WIDE).startswith(NPY_IN_BASE64)


def test_an_id_beyond_the_model_is_refused():
    ids_TXK = all_layers(routes(0, 4, ALL_MOE), ALL_MOE, "uint8")
    ids_TXK[2, 1, 0] = 255
    with pytest.raises(InvalidInput, match="routed_experts: expected expert ids 0 to 7, got 255"):
        decode(ids_TXK, ALL_MOE)


def test_S7_a_header_that_claims_more_than_there_is_allocates_nothing():
    whole = base64.b64decode(_npy(np.zeros((4, 3, 2), np.uint8)))
    huge = whole.replace(b"(4, 3, 2)", b"(4000000000000,3,2)"[: len(b"(4, 3, 2)")].ljust(9))
    for shape in (b"(9,9,999)", b"(4, 3, 1)"):
        data = base64.b64encode(whole.replace(b"(4, 3, 2)", shape)).decode()
        with pytest.raises(InvalidInput, match=r"routed_experts: expected \d+ bytes for uint8 .* got 24 bytes"):
            decode(data, ALL_MOE)
    with pytest.raises(InvalidInput, match=r"a \.npy file"):
        decode(base64.b64encode(huge).decode(), ALL_MOE)


def test_S7_pickles_floats_and_other_files_are_refused():
    for payload, message in [
        (_npy(np.array([{}, []], dtype=object), allow_pickle=True), "expected a .npy file of integers, got object"),
        (_npy(np.zeros((4, 3, 2))), "expected a .npy file of integers, got float64"),
        (base64.b64encode(b"\x93NUMPY\x09\x00 junk").decode(), "expected a .npy file, got"),
        ("k05VTVBZ***", "routed_experts: expected base64"),
        ("", "expected a .npy file"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            decode(payload, ALL_MOE)


def test_fortran_order_is_understood():
    ids_TXK = all_layers(routes(0, 5, DENSE_FIRST), DENSE_FIRST, "uint8")
    np.testing.assert_array_equal(decode(_npy(np.asfortranarray(ids_TXK)), DENSE_FIRST).routed_TLK, ids_TXK[:, 1:])


def test_a_draft_model_that_overwrote_a_dense_layer_is_noticed():
    ids_TXK = all_layers(routes(0, 5, DENSE_FIRST), DENSE_FIRST, "uint8")
    ids_TXK[:, 0] = [3, 1, 2, 0]
    with pytest.raises(
        InvalidInput, match=r"routed_experts\[:, 0\]: expected no routes, as the layer is dense, .*#48622"
    ):
        decode(ids_TXK, DENSE_FIRST)
