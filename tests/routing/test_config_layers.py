import pytest

from relibra.errors import InvalidInput
from relibra.routing.config_layers import moe_layers


@pytest.mark.parametrize(
    ("config", "is_moe"),
    [
        ({}, "++++++"),
        ({"mlp_only_layers": [1]}, "+-++++"),
        ({"decoder_sparse_step": 2}, "-+-+-+"),
        ({"interleave_moe_layer_step": 3}, "--+--+"),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 2}, "----+-"),
        ({"num_dense_layers": 2, "layer_types": ["full_attention"] * 6}, "--++++"),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 4, "moe_layer_interval": 2}, "-+-+--"),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": -1}, "-+++++"),
        ({"expert_layer_period": 3, "expert_layer_offset": 1}, "-+--+-"),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1], "first_k_dense_replace": 5}, "-++-++"),
        ({"mlp_layer_types": ["dense", "sparse", "moe", "hash_moe", "dense", "dense"]}, "-+++--"),
        ({"moe_layers": [1, 5], "interleave_moe_layer_step": 1}, "-+---+"),
        ({"moe_layers_enum": "4,5"}, "----++"),
        (
            {
                "hybrid_override_pattern": "ME*E-E",
                "layers_block_type": ["mamba", "moe", "attention", "moe", "mlp", "moe"],
            },
            "-+-+-+",
        ),
        ({"num_hidden_layers": None, "layers_block_type": ["moe", "mamba"]}, "+-"),
        ({"num_hidden_layers": None, "num_layers": 2}, "++"),
    ],
)
def test_lists_and_rules_say_which_layers_are_moe_layers(config, is_moe):
    assert "".join("-+"[each] for each in moe_layers({"num_hidden_layers": 6} | config)) == is_moe


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected 1 to 4096"),
        ({"num_layers": 3}, r"num_hidden_layers and num_layers: expected one number of layers, got \[6, 3\]"),
        ({"moe_layer_freq": [1]}, "moe_layer_freq: expected one entry for each of 6 layers, got 1"),
        ({"moe_layer_freq": 0}, "moe_layer_freq: expected a whole number of at least 1"),
        ({"decoder_sparse_step": "x"}, "decoder_sparse_step: expected a whole number of at least 1"),
        ({"moe_layer_interval": [1, 1]}, "moe_layer_interval: expected a whole number of at least 1"),
        ({"first_k_dense_replace": "x"}, "first_k_dense_replace: expected a whole number"),
        ({"mlp_only_layers": 3}, "mlp_only_layers: expected a list"),
        ({"hybrid_override_pattern": "EE"}, "hybrid_override_pattern: expected one entry"),
        ({"mlp_layer_types": ["dense", "other"]}, "mlp_layer_types: expected a list of dense or sparse or moe"),
        ({"moe_layers": [6]}, "moe_layers: expected numbers of layers from 0 to 5"),
        ({"moe_layers_enum": "1,x"}, "moe_layers_enum: expected numbers of layers"),
        (
            {"moe_layers": [1], "mlp_layer_types": ["moe"] * 6},
            "mlp_layer_types and moe_layers: expected the same MoE layers",
        ),
    ],
)
def test_layers_that_cannot_be_told_are_refused_by_the_key(config, message):
    with pytest.raises(InvalidInput, match=message):
        moe_layers({"num_hidden_layers": 6} | config)


@pytest.mark.parametrize(
    "key", ["moe_layer_num_skipped", "moe_layer_offset", "sparse_layers", "expert_every_n_layers", "moe_period"]
)
def test_S9_an_unknown_key_that_seems_to_choose_moe_layers_is_refused(key):
    with pytest.raises(InvalidInput, match=f"{key}: expected no key that chooses MoE layers"):
        moe_layers({"num_hidden_layers": 6, key: 1})
    assert all(moe_layers({"num_hidden_layers": 6, key: None, "moe_router_dtype": "fp32", "mlp_bias": False}))
