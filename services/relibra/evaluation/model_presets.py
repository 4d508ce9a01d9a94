"""Presets of models that people train: the part of each published `config.json` that decides training time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relibra.errors import InvalidInput
from relibra.evaluation.model_shape import ModelShape, shape_of_config
from relibra.routing.model_config import read_config

_LATENT_ATTENTION = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
"""The attention of DeepSeek-V3 and of the models that follow it."""

_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "qwen3-30b-a3b": {
        "num_hidden_layers": 48,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "hidden_size": 2048,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
    "glm-4.5-air": {
        "num_hidden_layers": 46,
        "first_k_dense_replace": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "hidden_size": 4096,
        "moe_intermediate_size": 1408,
        "intermediate_size": 10_944,
        "num_attention_heads": 96,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_552,
    },
    "qwen3-235b-a22b": {
        "num_hidden_layers": 94,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "hidden_size": 4096,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
    "deepseek-v3": {
        "num_hidden_layers": 61,
        "first_k_dense_replace": 3,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "hidden_size": 7168,
        "moe_intermediate_size": 2048,
        "intermediate_size": 18_432,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        **_LATENT_ATTENTION,
        "vocab_size": 129_280,
    },
    "kimi-k2": {
        "num_hidden_layers": 61,
        "first_k_dense_replace": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "hidden_size": 7168,
        "moe_intermediate_size": 2048,
        "intermediate_size": 18_432,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        **_LATENT_ATTENTION,
        "vocab_size": 163_840,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "vocab_size": 201_088,
    },
    "moonlight-16b": {
        "num_hidden_layers": 27,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "hidden_size": 2048,
        "moe_intermediate_size": 1408,
        "intermediate_size": 11_264,
        "num_attention_heads": 16,
        "q_lora_rank": None,
        **_LATENT_ATTENTION,
        "vocab_size": 163_840,
    },
}

MODELS = {name: shape_of_config(name, config) for name, config in _CONFIGS.items()}
"""The shapes of the presets, by name."""


def model_shape(name: str) -> ModelShape:
    """Return a preset, or read the shape of another model from its `config.json`.

    Args:
        name: the name of a preset, or the path of a `config.json` or of the checkpoint folder that holds it.

    Raises:
        InvalidInput: `name` is neither a preset nor a path, or the configuration lacks a value.
    """
    if name in MODELS:
        return MODELS[name]
    path = Path(name)
    if not path.exists():
        raise InvalidInput.of("model", expected=f"one of {', '.join(MODELS)}, or path of a config.json", got=name)
    config = read_config(path)
    return shape_of_config(str(config.get("model_type", path.stem)), config)
