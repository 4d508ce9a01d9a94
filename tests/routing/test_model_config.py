import json

import pytest

from relibra.errors import InvalidInput
from relibra.planning import Model
from relibra.routing import read_model, read_model_config
from relibra.routing.model_config import layers_of_config

_QWEN3 = {"num_hidden_layers": 4, "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1}


@pytest.mark.parametrize(
    ("config", "is_moe"),
    [
        (_QWEN3 | {"mlp_only_layers": []}, "++++"),
        (
            {
                "num_hidden_layers": 4,
                "n_routed_experts": 128,
                "num_experts_per_tok": 8,
                "first_k_dense_replace": 3,
                "moe_layer_freq": 1,
                "num_nextn_predict_layers": 1,
            },
            "---+",
        ),
        ({"num_hidden_layers": 4, "num_local_experts": 128, "experts_per_token": 8}, "++++"),
        ({"num_hidden_layers": 4, "moe_num_experts": 128, "moe_topk": 8, "moe_layer_freq": [0, 1, 1, 0]}, "-++-"),
        ({"num_hidden_layers": 4, "n_routed_experts": 128, "moe_top_k": 8, "hybrid_override_pattern": "ME*E"}, "-+-+"),
        ({"num_hidden_layers": 4, "num_local_experts": 128, "moe_k": 8, "interleave_moe_layer_step": 2}, "-+-+"),
        ({"n_layers": 4, "ffn_config": {"moe_num_experts": 128, "moe_top_k": 8}}, "++++"),
        ({"num_hidden_layers": 4, "num_experts": [128] * 4, "moe_topk": [8] * 4}, "++++"),
    ],
)
def test_configs_say_which_layers_route_to_how_many_experts(config, is_moe):
    layers = layers_of_config(config)
    assert "".join("-+"[each] for each in layers.is_moe) == is_moe
    assert (layers.num_experts, layers.top_k) == (128, 8)
    assert layers.num_mtp_layers == config.get("num_nextn_predict_layers", 0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "model config: expected a mixture of experts, which has num_experts or .* a dense model has no experts"),
        ({"num_experts": 8}, "named num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 2}, "named num_hidden_layers"),
        (_QWEN3 | {"num_experts": [4, 8]}, "named num_experts or"),
        (_QWEN3 | {"first_k_dense_replace": 4}, "is_moe: expected at least one MoE layer"),
        (_QWEN3 | {"enable_moe_block": False}, "enable_moe_block: expected true"),
        (_QWEN3 | {"is_encoder_decoder": True}, "is_encoder_decoder: expected false"),
        (_QWEN3 | {"zero_expert_num": 64}, "zero_expert_num: expected 0: no framework on megatron-core trains"),
    ],
)
def test_S9_models_that_cannot_be_told_or_planned_are_refused_by_the_key(config, message):
    with pytest.raises(InvalidInput, match=message):
        layers_of_config(config)


def test_a_file_and_the_folder_of_a_checkpoint_are_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_QWEN3))
    assert read_model_config(path) == read_model_config(tmp_path) == layers_of_config(_QWEN3)
    path.write_text(json.dumps({"text_config": _QWEN3, "vision_config": {"num_hidden_layers": 9}}))
    assert read_model_config(path) == layers_of_config(_QWEN3)
    path.write_text(json.dumps({"thinker_config": {"text_config": _QWEN3}, "talker_config": {"text_config": {}}}))
    assert read_model_config(path) == layers_of_config(_QWEN3)
    path.write_text(json.dumps({"text_config": _QWEN3, "llm_config": _QWEN3}))
    with pytest.raises(InvalidInput, match="expected one text model, got text_config and llm_config"):
        read_model_config(path)
    for text in ("[]", "{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=r"config\.json: expected a"):
            read_model_config(path)
    with pytest.raises(
        InvalidInput, match=r"absent\.json: expected a model's config\.json, in JSON, got .*No such file"
    ):
        read_model_config(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("widths", "parameters"),
    [
        ({"hidden_size": 2048, "moe_intermediate_size": 768, "intermediate_size": 6144}, 3 * 2048 * 768),
        ({"hidden_size": 2880, "intermediate_size": 2880}, 3 * 2880 * 2880),
        ({"hidden_size": 100, "moe_intermediate_size": 10, "mlp_hidden_act": "relu2"}, 2 * 100 * 10),
        ({}, 0),
    ],
)
def test_S9_the_model_to_register_has_the_sizes_of_its_experts(tmp_path, widths, parameters):
    (tmp_path / "config.json").write_text(json.dumps(_QWEN3 | widths))
    assert read_model(tmp_path) == Model(
        num_layers=4,
        num_experts=128,
        top_k=8,
        expert_weight_size_bytes=2 * parameters,
        expert_state_size_bytes=14 * parameters,
    )
