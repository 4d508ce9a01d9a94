import json
from dataclasses import replace

import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.model_presets import model_shape


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
    model = model_shape(name)
    assert model.expert_weight_size_bytes / 1e6 == pytest.approx(expert_mb, rel=0.005)
    experts = model.num_layers * (model.num_experts + model.num_shared_experts) * model.expert_parameters
    attention = (model.num_layers + model.num_dense_layers) * model.attention_parameters
    dense = 3 * model.num_dense_layers * model.hidden_size * model.dense_ffn_size
    embeddings = 2 * model.vocabulary_size * model.hidden_size
    assert (experts + attention + dense + embeddings) / 1e9 == pytest.approx(total_billion, rel=0.02)


def test_only_experts_with_biases_have_results_with_biases():
    biased, plain = (replace(model_shape("gpt-oss-20b"), experts_have_biases=each) for each in (True, False))
    assert model_shape("gpt-oss-20b") == biased
    assert not model_shape("deepseek-v3").experts_have_biases
    more = biased.activation_memory().working_bytes - plain.activation_memory().working_bytes
    assert more == 2 * biased.hidden_size


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(
        InvalidInput, match=r"model: expected one of qwen3-30b-a3b, .*, or path of a config.json, got gpt-5"
    ):
        model_shape("gpt-5")


def test_another_model_is_read_from_its_config(tmp_path):
    config = {
        "model_type": "my_moe",
        "num_hidden_layers": 6,
        "mlp_only_layers": [0],
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "hidden_size": 512,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config}))
    model = model_shape(str(tmp_path))
    assert model == model_shape(str(tmp_path / "config.json"))
    assert (model.name, model.num_layers, model.num_dense_layers) == ("my_moe", 5, 1)
    assert (model.num_experts, model.top_k, model.num_shared_experts) == (16, 2, 2)
    assert model.attention_parameters == 4 * 512 * 512
