import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.model_shape import shape_of_config

_CONFIG = {
    "num_hidden_layers": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def test_flop_of_a_token_are_two_a_parameter_and_scores():
    model = MODELS["qwen3-30b-a3b"]
    without_scores = model.layer_flop(1, 0)
    assert without_scores == 2 * (model.attention_parameters + model.hidden_size * model.num_experts)
    assert model.layer_flop(3, 100) - 3 * without_scores == 3 * 2 * 100 * model.attention_width


def test_layers_that_look_back_a_window_have_no_scores_to_speak_of():
    model = MODELS["gpt-oss-20b"]
    # Twelve of 24 layers attend to all 8192 tokens, half of them on average, with 64 heads of 64.
    assert 24 * (model.layer_flop(1, 8192) - model.layer_flop(1, 0)) == 12 * 2 * 8192 * 64 * 64


@pytest.mark.parametrize(
    ("keys", "parameters", "width"),
    [
        ({}, 64 * 16 * (2 * 4 + 2 * 4), 4 * 16),
        ({"num_key_value_heads": 1, "head_dim": 32}, 64 * 32 * (2 * 4 + 2), 4 * 32),
        (
            {"kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 8, "q_lora_rank": 20},
            20 * (64 + 4 * 16) + 64 * (24 + 4) + 24 * 4 * (12 + 8) + 4 * 8 * 64,
            4 * (16 + 8) // 2,
        ),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 64 * 16 * (2 * 4 + 2 * 4), 4 * 16 // 4),
    ],
)
def test_attention_is_counted_by_its_kind(keys, parameters, width):
    shape = shape_of_config("", _CONFIG | keys)
    assert (shape.attention_parameters, shape.attention_width) == (parameters, width)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": None}, "model config: expected a whole number named hidden_size"),
        ({"hidden_size": "64"}, r"a whole number named hidden_size, got \{'hidden_size': '64'\}"),
        ({"head_dim": 0}, "head_dim: expected at least 1, got 0"),
        ({"num_key_value_heads": -1}, "num_key_value_heads: expected at least 1, got -1"),
        ({"num_attention_heads": 0}, "num_attention_heads: expected at least 1, got 0"),
        ({"kv_lora_rank": 24}, "named qk_nope_head_dim"),
        ({"first_k_dense_replace": 1}, "named intermediate_size_mlp or intermediate_size"),
        ({"hybrid_override_pattern": "ME*E"}, "hybrid_override_pattern: expected none"),
    ],
)
def test_a_configuration_that_says_too_little_is_refused_by_the_key(keys, message):
    with pytest.raises(InvalidInput, match=message):
        shape_of_config("", _CONFIG | keys)
