"""The routers of a model and the sizes of its experts, read from its Hugging Face `config.json`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from relibra.errors import InvalidInput
from relibra.planning import Model
from relibra.routing.model_layers import ModelLayers

_NUM_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)
EXPERT_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
BF16_BYTES = 2
STATE_BYTES_PER_PARAMETER = 14
"""bf16 weight, fp32 main weight and two fp32 moments."""
_NUM_LAYERS = ("num_hidden_layers", "n_layers", "num_layers")


def read_model_config(path: str | Path) -> ModelLayers:
    """Read the routers of a model from `config.json`, or from the checkpoint folder that contains it.

    Raises:
        InvalidInput: the file does not exist, is not JSON or describes no MoE model; the message names a missing key.
    """
    return layers_of_config(read_config(path))


def read_model(path: str | Path) -> Model:
    """Read the model to register from `config.json`, or from the checkpoint folder that contains it.

    Sizes are those of training in bf16 with Adam: bf16 weights, fp32 main weights and two fp32 moments. They stay
    unknown (0) where the configuration lacks a width.

    Raises:
        InvalidInput: as `read_model_config`.
    """
    config = read_config(path)
    layers = layers_of_config(config)
    parameters = expert_parameters(config)
    return Model(
        num_layers=layers.num_moe_layers,
        num_experts=layers.num_experts,
        top_k=layers.top_k,
        expert_weight_size_bytes=BF16_BYTES * parameters,
        expert_state_size_bytes=STATE_BYTES_PER_PARAMETER * parameters,
    )


def expert_parameters(config: Mapping[str, Any]) -> int:
    """Return the parameters of one routed expert: gate, up and down projection; 0 if a width is not given.

    Experts with a plain activation (`relu2`, as in Nemotron-H) have no gate.
    """
    hidden_size = number(config, ["hidden_size"], default=0)
    ffn_size = number(config, EXPERT_WIDTHS, default=0)
    activation = config.get("mlp_hidden_act") or config.get("hidden_act")
    return (2 if activation == "relu2" else 3) * hidden_size * ffn_size


def read_config(path: str | Path) -> Mapping[str, Any]:
    """Read `config.json`, or the one in a folder; for a composite model, return the configuration of its text model.

    Raises:
        InvalidInput: the file does not exist or is not a JSON object.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput.of("model config", expected="a Hugging Face config.json", got=error) from error
    if not isinstance(config, Mapping):
        raise InvalidInput.of("model config", expected="a JSON object", got=f"a {type(config).__name__}")
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def layers_of_config(config: Mapping[str, Any]) -> ModelLayers:
    """Return the routers that a model configuration describes.

    This function understands dense first layers (`first_k_dense_replace`), a frequency or a mask (`moe_layer_freq`),
    Qwen's `decoder_sparse_step` and `mlp_only_layers`, Llama's `interleave_moe_layer_step`, hybrid patterns
    (`hybrid_override_pattern`, E for MoE) and lists of layer types (`mlp_layer_types`, `layers_block_type`).

    Raises:
        InvalidInput: a key is missing or has a wrong value; the message names the key.
    """
    num_layers = number(config, _NUM_LAYERS)
    if not 1 <= num_layers <= 4096:
        raise InvalidInput.of("num_hidden_layers", expected="1 to 4096", got=num_layers)
    return ModelLayers(
        num_experts=number(config, _NUM_EXPERTS),
        top_k=number(config, _TOP_K),
        is_moe=_moe_layers(config, num_layers),
        num_mtp_layers=number(config, ["num_nextn_predict_layers"], default=0),
    )


def number(config: Mapping[str, Any], keys: Sequence[str], default: int | None = None) -> int:
    """Return the whole number under the first of `keys` that has one, or `default` if none of the keys is set.

    Raises:
        InvalidInput: the keys have other values than whole numbers, or none is set and there is no default.
    """
    for key in keys:
        value = config.get(key)
        if _is_int(value):
            return value
    given = {key: config[key] for key in keys if config.get(key) is not None}
    if default is None or given:
        expected = f"a whole number named {' or '.join(keys)}"
        raise InvalidInput.of("model config", expected=expected, got=given or "none of them")
    return default


def _moe_layers(config: Mapping[str, Any], num_layers: int) -> tuple[bool, ...]:
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return _checked("hybrid_override_pattern", [letter == "E" for letter in pattern], num_layers)
    for key, moe in (("mlp_layer_types", "sparse"), ("layers_block_type", "moe")):
        kinds = config.get(key)
        if isinstance(kinds, Sequence) and moe in kinds:
            return _checked(key, [kind == moe for kind in kinds], num_layers)
    frequency = config.get("moe_layer_freq", 1)
    if isinstance(frequency, Sequence) and not isinstance(frequency, str):
        return _checked("moe_layer_freq", [bool(each) for each in frequency], num_layers)
    if not _is_int(frequency) or frequency < 1:
        raise InvalidInput.of("moe_layer_freq", expected="a whole number of at least 1, or a list", got=frequency)
    step_key = "decoder_sparse_step" if "decoder_sparse_step" in config else "interleave_moe_layer_step"
    step = config.get(step_key, 1)
    if not _is_int(step) or step < 1:
        raise InvalidInput.of(step_key, expected="a whole number of at least 1", got=step)
    first = config.get("first_k_dense_replace") or 0
    if not _is_int(first):
        raise InvalidInput.of("first_k_dense_replace", expected="a whole number", got=first)
    dense = config.get("mlp_only_layers") or ()
    if not isinstance(dense, Sequence):
        raise InvalidInput.of("mlp_only_layers", expected="a list of layers", got=dense)
    return tuple(
        layer >= first and layer % frequency == 0 and (layer + 1) % step == 0 and layer not in dense
        for layer in range(num_layers)
    )


def _checked(key: str, is_moe: list[bool], num_layers: int) -> tuple[bool, ...]:
    if len(is_moe) != num_layers:
        raise InvalidInput.of(key, expected=f"one entry for each of {num_layers} layers", got=len(is_moe))
    return tuple(is_moe)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
