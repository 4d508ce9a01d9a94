import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.model_presets import MODELS, model_preset


@pytest.mark.parametrize(
    ("name", "expert_mb", "total_billion"),
    [
        ("qwen3-30b-a3b", 9.44, 30.5),
        ("glm-4.5-air", 34.6, 106),
        ("qwen3-235b-a22b", 37.7, 235),
        ("deepseek-v3", 88.1, 671),
        ("kimi-k2", 88.1, 1026),
        ("gpt-oss-20b", 49.8, 20.9),
        ("moonlight-16b", 17.3, 16.0),
    ],
)
def test_shapes_add_up_to_the_published_sizes(name, expert_mb, total_billion):
    model = model_preset(name)
    assert model.expert_weight_size_bytes / 1e6 == pytest.approx(expert_mb, rel=0.005)
    experts = model.num_layers * (model.num_experts + model.num_shared_experts) * model.expert_parameters
    attention = (model.num_layers + model.num_dense_layers) * model.attention_parameters
    dense = 3 * model.num_dense_layers * model.hidden_size * model.dense_ffn_size
    embeddings = 2 * model.vocabulary_size * model.hidden_size
    assert (experts + attention + dense + embeddings) / 1e9 == pytest.approx(total_billion, rel=0.02)


def test_flop_of_a_token_are_two_a_parameter_and_scores():
    model = MODELS["qwen3-30b-a3b"]
    without_scores = model.layer_flop(1, 0)
    assert without_scores == 2 * (model.attention_parameters + model.hidden_size * model.num_experts)
    assert model.layer_flop(3, 100) - 3 * without_scores == 3 * 2 * 100 * model.attention_width


def test_layers_that_look_back_a_window_have_no_scores_to_speak_of():
    model = MODELS["gpt-oss-20b"]
    # Twelve of 24 layers attend to all 8192 tokens, half of them on average, with 64 heads of 64.
    assert 24 * (model.layer_flop(1, 8192) - model.layer_flop(1, 0)) == 12 * 2 * 8192 * 64 * 64


def test_an_unknown_model_is_refused_with_those_there_are():
    with pytest.raises(InvalidInput, match=r"model: expected one of qwen3-30b-a3b, .*, got gpt-5"):
        model_preset("gpt-5")
