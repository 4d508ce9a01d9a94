import re
from typing import Any

import numpy as np
import pytest

from relibra.errors import InvalidInput, Unsupported
from relibra.plugins.logical_export import logical
from relibra.routing import ModelLayers

LAYERS = ModelLayers(num_experts=4, top_k=2, is_moe=(False, True, True), num_mtp_layers=1)
TABLE_LE = np.array([[0, 1, 2, 3], [2, 0, 3, 1]])


def renamed(*names: str, tensor: Any = None) -> list[str]:
    return [name for name, _ in logical([(name, tensor) for name in names], TABLE_LE, LAYERS)]


def test_each_expert_gets_its_number_and_all_else_keeps_its_name() -> None:
    at = "model.language_model.layers.2"
    assert renamed(
        "model.embed_tokens.weight",
        f"{at}.mlp.gate.weight",
        f"{at}.mlp.shared_experts.gate_proj.weight",
        f"{at}.mlp.shared_experts.experts.0.gate.weight",
        "model.layers.1.mlp.experts.3.up_proj.weight",
        f"{at}.mlp.experts.0.up_proj.weight",
        f"{at}.mlp.experts.1.up_proj.weight_scale_inv",
        "backbone.layers.2.mixer.experts.3.down_proj.weight",
    ) == [
        "model.embed_tokens.weight",
        f"{at}.mlp.gate.weight",
        f"{at}.mlp.shared_experts.gate_proj.weight",
        f"{at}.mlp.shared_experts.experts.0.gate.weight",
        "model.layers.1.mlp.experts.3.up_proj.weight",
        f"{at}.mlp.experts.2.up_proj.weight",
        f"{at}.mlp.experts.0.up_proj.weight_scale_inv",
        "backbone.layers.2.mixer.experts.1.down_proj.weight",
    ]


def test_experts_of_multi_token_prediction_never_move() -> None:
    names = ["model.layers.3.mlp.experts.0.up_proj.weight", "mtp.layers.2.mlp.experts.0.up_proj.weight"]
    assert renamed(*names) == names


@pytest.mark.parametrize("rest", ["gate_up_proj", "down_proj_bias", "gate_up_proj_blocks", "down_proj.weight"])
def test_a_tensor_of_all_experts_is_put_in_logical_order(rest: str) -> None:
    name = f"model.layers.2.mlp.experts.{rest}"
    by_place = TABLE_LE[1][:, None] * 10 + np.arange(3)
    ((got_name, got),) = logical([(name, by_place)], TABLE_LE, LAYERS)
    assert got_name == name
    np.testing.assert_array_equal(got, np.arange(4)[:, None] * 10 + np.arange(3))


def test_a_layer_whose_experts_are_at_home_is_not_copied() -> None:
    tensor = np.zeros((4, 3))
    ((_, got),) = logical([("model.layers.1.mlp.experts.gate_up_proj", tensor)], TABLE_LE, LAYERS)
    assert got is tensor


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("transformer.blocks.2.ffn.experts.mlp.w1", "no number of a layer"),
        ("model.layers.0.mlp.experts.1.up_proj.weight", "layer 0, which is none of the MoE layers [1, 2]"),
        ("model.layers.4.mlp.experts.1.up_proj.weight", "layer 4"),
        ("model.layers.2.mlp.experts.4.up_proj.weight", "expert 4 of 4"),
        ("model.layers.2.mlp.experts.gate_up_proj", "shape [2, 3]"),
        ("model.layers.2.mlp.experts.gate_up_proj.lora_A.weight", "lora_A"),
        ("decoder.layers.2.mlp.experts.linear_fc1.weight3", "may number the experts of one rank"),
        ("decoder.layers.2.mlp.experts.local_experts.1.linear_fc1.weight", "may number the experts of one rank"),
    ],
)
def test_a_name_that_nobody_understands_is_refused_with_the_name(name: str, message: str) -> None:
    with pytest.raises(Unsupported, match=re.escape(name)) as raised:
        renamed(name, tensor=np.zeros((2, 3)))
    assert message in str(raised.value)


def test_a_stream_without_experts_is_refused_only_if_experts_have_moved() -> None:
    weights = [("model.layers.2.block_sparse_moe.input_linear.weight", None)]
    with pytest.raises(Unsupported, match="no tensor of experts at all"):
        list(logical(weights, TABLE_LE, LAYERS))
    assert list(logical(weights, np.arange(4) + np.zeros((2, 1), int), LAYERS)) == weights


@pytest.mark.parametrize("table_LE", [TABLE_LE[:1], np.array([[0, 1, 2, 3], [2, 2, 3, 1]])])
def test_a_table_of_another_model_is_refused_before_anything_is_read(table_LE: Any) -> None:
    with pytest.raises(InvalidInput, match="expert_of_place_LE"):
        logical(iter([]), table_LE, LAYERS)
