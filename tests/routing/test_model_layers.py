import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.routing import ModelLayers


def test_payloads_over_all_layers_over_moe_layers_and_with_mtp_layers_are_told_apart():
    layers = ModelLayers(num_experts=8, top_k=2, is_moe=(False, True, False, True), num_mtp_layers=1)
    ids_TXK = np.zeros((3, 5, 2), dtype=np.uint8)
    ids_TXK[:, 1], ids_TXK[:, 3], ids_TXK[:, 4] = [5, 1], [6, 2], [7, 3]
    expected = [[[5, 1], [6, 2]]] * 3
    for payload in (ids_TXK, ids_TXK[:, :4], ids_TXK[:, [1, 3]], ids_TXK[:, [1, 3, 4]]):
        np.testing.assert_array_equal(layers.select_moe(payload, "ids"), expected)
    with pytest.raises(InvalidInput, match=r"ids: expected \[rows, 4 layers or 2 MoE layers, top 2\], got \[3, 6, 2\]"):
        layers.select_moe(np.zeros((3, 6, 2), np.uint8), "ids")


def test_dense_first_layers_are_cut_without_a_copy():
    layers = ModelLayers(num_experts=8, top_k=2, is_moe=(False, True, True))
    ids_TXK = np.zeros((3, 3, 2), dtype=np.uint8)
    assert np.shares_memory(layers.select_moe(ids_TXK, "ids"), ids_TXK)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_experts": 0}, "num_experts: expected 1 to 65536, got 0"),
        ({"num_experts": 65537}, "num_experts: expected 1 to 65536"),
        ({"top_k": 9}, "top_k: expected 1 to num_experts = 8, got 9"),
        ({"is_moe": (False, False)}, "is_moe: expected at least one MoE layer, got 2 layers without any"),
        ({"num_mtp_layers": -1}, "num_mtp_layers: expected at least 0"),
    ],
)
def test_models_that_cannot_be_are_refused(changed, message):
    with pytest.raises(InvalidInput, match=message):
        ModelLayers(**({"num_experts": 8, "top_k": 2, "is_moe": (True,)} | changed))
