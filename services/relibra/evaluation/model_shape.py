"""The part of a model's shape that decides training time, and how to read it from a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relibra.errors import InvalidInput
from relibra.planning.cost import BF16_BYTES
from relibra.planning.job import Model
from relibra.planning.memory import ActivationMemory, copy_bytes
from relibra.routing.config_numbers import number
from relibra.routing.model_config import EXPERT_WIDTHS, STATE_BYTES_PER_PARAMETER, layers_of_config

_WITH_BIASES = "gpt_oss"
"""The type of the models whose experts have biases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a mixture-of-experts transformer."""

    name: str
    num_layers: int
    """The number of MoE layers."""
    num_dense_layers: int
    num_experts: int
    top_k: int
    hidden_size: int
    expert_ffn_size: int
    dense_ffn_size: int
    num_shared_experts: int
    """The number of shared experts, each as wide as a routed expert (`expert_ffn_size`)."""
    attention_parameters: int
    """The attention parameters of one layer."""
    attention_width: int
    """Heads times the mean of query and value dimension: the cost of scores and their use for each pair of tokens."""
    vocabulary_size: int
    experts_have_biases: bool = False

    @property
    def expert_parameters(self) -> int:
        """The parameters of one expert: gate, up and down projection."""
        return 3 * self.hidden_size * self.expert_ffn_size

    @property
    def expert_weight_size_bytes(self) -> int:
        """The bytes of one expert's bf16 weights."""
        return BF16_BYTES * self.expert_parameters

    @property
    def slot_size_bytes(self) -> int:
        """The bytes of a redundant slot: bf16 weights and fp32 gradients."""
        return 3 * self.expert_weight_size_bytes

    def activation_memory(self, recomputed: str = "") -> ActivationMemory:
        """Return what a token copy of bf16 training takes, without a pipeline.

        Args:
            recomputed: what is computed again in the backward: `moe`, `moe_act` or nothing.
        """
        kept_bytes, working_bytes = copy_bytes(
            self.hidden_size, self.expert_ffn_size, has_bias=self.experts_have_biases, recomputed=(recomputed,)
        )
        return ActivationMemory(kept_bytes=kept_bytes, working_bytes=working_bytes)

    def model(self) -> Model:
        """Return the model as planning knows it."""
        return Model(
            num_layers=self.num_layers,
            num_experts=self.num_experts,
            top_k=self.top_k,
            expert_weight_size_bytes=self.expert_weight_size_bytes,
            expert_state_size_bytes=STATE_BYTES_PER_PARAMETER * self.expert_parameters,
        )

    def layer_flop(self, num_tokens: float, sequence_length: float) -> float:
        """Return the forward FLOP of an MoE layer without its routed experts: attention, router and shared experts."""
        shared = self.num_shared_experts * self.expert_parameters
        router = self.hidden_size * self.num_experts
        scores = 2 * sequence_length * self.attention_width  # causal: half of 4 x length x width
        return num_tokens * (2 * (self.attention_parameters + shared + router) + scores)

    def other_flop(self, num_tokens: float, sequence_length: float) -> float:
        """Return the forward FLOP outside MoE layers: dense layers and the output head."""
        dense = 2 * (self.attention_parameters + 3 * self.hidden_size * self.dense_ffn_size)
        scores = 2 * sequence_length * self.attention_width
        head = 2 * self.hidden_size * self.vocabulary_size
        return num_tokens * (self.num_dense_layers * (dense + scores) + head)


def shape_of_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Return the shape that a model configuration describes.

    Attention is multi-head latent attention (`kv_lora_rank`) or grouped-query attention. Layers that look back a window
    or attend linearly (`layer_types`) have scores that count as free.

    Raises:
        InvalidInput: a key is missing (the error names it), or the simulation has no model of time for such a model.
    """
    if "hybrid_override_pattern" in config:
        raise InvalidInput.of(
            "hybrid_override_pattern",
            expected="none: every layer has attention and a feed-forward part in the model of time",
            got=config["hybrid_override_pattern"],
        )
    layers = layers_of_config(config)
    num_dense_layers = layers.is_moe.count(False)
    expert_ffn_size = _size(config, *EXPERT_WIDTHS)
    shared_ffn_size = number(config, ["shared_expert_intermediate_size"], default=0)
    num_shared = ["n_shared_experts", "num_shared_experts", "moe_num_shared_experts"]
    parameters, width = _attention(config)
    return ModelShape(
        name=name,
        num_layers=layers.is_moe.count(True),
        num_dense_layers=num_dense_layers,
        num_experts=layers.num_experts,
        top_k=layers.top_k,
        hidden_size=_size(config, "hidden_size"),
        expert_ffn_size=expert_ffn_size,
        dense_ffn_size=_size(config, "intermediate_size_mlp", "intermediate_size") if num_dense_layers else 0,
        num_shared_experts=number(config, num_shared, default=round(shared_ffn_size / expert_ffn_size)),
        attention_parameters=parameters,
        attention_width=int(width * _share_of_full_attention(config)),
        vocabulary_size=_size(config, "vocab_size"),
        experts_have_biases=config.get("model_type") == _WITH_BIASES,
    )


def _attention(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the parameters of one layer's attention, and its width."""
    hidden_size, num_heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    latent_size = number(config, ["kv_lora_rank"], default=0)
    if not latent_size:
        head_size = _size(config, "head_dim", default=max(1, hidden_size // num_heads))
        num_kv_heads = _size(config, "num_key_value_heads", default=num_heads)
        return hidden_size * head_size * (2 * num_heads + 2 * num_kv_heads), num_heads * head_size
    plain_size, rotated_size = _size(config, "qk_nope_head_dim"), _size(config, "qk_rope_head_dim")
    value_size, query_rank = _size(config, "v_head_dim"), number(config, ["q_lora_rank"], default=0)
    queries = num_heads * (plain_size + rotated_size)
    query = query_rank * (hidden_size + queries) if query_rank else hidden_size * queries
    key_value = hidden_size * (latent_size + rotated_size) + latent_size * num_heads * (plain_size + value_size)
    return query + key_value + num_heads * value_size * hidden_size, (queries + num_heads * value_size) // 2


def _size(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    size = number(config, keys, default)
    if size < 1:
        raise InvalidInput.of(" or ".join(keys), expected="at least 1", got=size)
    return size


def _share_of_full_attention(config: Mapping[str, Any]) -> float:
    kinds = config.get("layer_types")
    if not isinstance(kinds, list) or not kinds:
        return 1.0
    return kinds.count("full_attention") / len(kinds)
