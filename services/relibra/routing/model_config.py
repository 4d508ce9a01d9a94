"""The routers of a model and the sizes of its experts, read from its Hugging Face `config.json`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relibra.errors import InvalidInput
from relibra.planning import Model
from relibra.planning.cost import BF16_BYTES
from relibra.routing.config_layers import moe_layers
from relibra.routing.config_numbers import number
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
_EXPERT_INPUTS = ("moe_latent_size", "moe_hidden_size", "hidden_size")
EXPERT_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
STATE_BYTES_PER_PARAMETER = 14
"""bf16 weight, fp32 main weight and two fp32 moments."""
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where the configuration of a composite model keeps the part that writes text; it may be composite itself."""
_HAS_EXPERTS = ("enable_moe_block", "is_moe")
"""Flags without which a model has no experts, whatever else its configuration says of them."""


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
    hidden_size = number(config, _EXPERT_INPUTS, default=0)
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
        config: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput.of(str(path), expected="a model's config.json, in JSON", got=error) from error
    if not isinstance(config, Mapping):
        raise InvalidInput.of(str(path), expected="a JSON object", got=f"a {type(config).__name__}")
    text: Mapping[str, Any] = config
    while parts := [key for key in _TEXT_PARTS if isinstance(text.get(key), Mapping)]:
        if len(parts) > 1:
            raise InvalidInput.of(str(path), expected="one text model", got=" and ".join(parts))
        text = text[parts[0]]
    return text


def layers_of_config(config: Mapping[str, Any]) -> ModelLayers:
    """Return the routers that a model configuration describes; `moe_layers` has the keys that choose MoE layers.

    Raises:
        InvalidInput: a key is missing or has a wrong value, or the model is of a kind whose routing relibra cannot
            plan; the message names the key.
    """
    if isinstance(config.get("ffn_config"), Mapping):
        config = {**config["ffn_config"], **config}
    _refuse_other_kinds(config)
    return ModelLayers(
        num_experts=number(config, _NUM_EXPERTS),
        top_k=number(config, _TOP_K),
        is_moe=moe_layers(config),
        num_mtp_layers=number(config, ["num_nextn_predict_layers"], default=0),
    )


def _refuse_other_kinds(config: Mapping[str, Any]) -> None:
    if not any(key in config for key in _NUM_EXPERTS):
        raise InvalidInput.of(
            "model config",
            expected=f"a mixture of experts, which has {' or '.join(_NUM_EXPERTS)}",
            got="none of them: a dense model has no experts to balance",
        )
    for flag in _HAS_EXPERTS:
        if config.get(flag) is False:
            raise InvalidInput.of(flag, expected="true, as in a mixture of experts", got=False)
    if config.get("is_encoder_decoder"):
        raise InvalidInput.of("is_encoder_decoder", expected="false: relibra knows decoders only", got=True)
    if config.get("zero_expert_num"):
        raise InvalidInput.of(
            "zero_expert_num",
            expected="0: no framework on megatron-core trains zero experts (LongCat), and vLLM sends expert 0 in the "
            "place of every zero expert, so the counts of tokens would be wrong",
            got=config["zero_expert_num"],
        )
