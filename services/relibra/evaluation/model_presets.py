"""Models people train: what of their shape decides time.

Shapes are those of the published `config.json` of each model.
"""

from dataclasses import dataclass

from relibra.errors import InvalidInput
from relibra.planning.topology import Model

_BF16 = 2
_STATE_BYTES_PER_PARAMETER = 14
"""bf16 weight, fp32 master and two moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """A mixture-of-experts transformer."""

    name: str
    num_layers: int
    """MoE layers."""
    num_dense_layers: int
    num_experts: int
    top_k: int
    hidden_size: int
    expert_ffn_size: int
    dense_ffn_size: int
    num_shared_experts: int
    """In units of `expert_ffn_size`."""
    attention_parameters: int
    """Of one layer."""
    attention_width: int
    """Heads times the mean of query and value dimension: what scores and their use cost per pair of tokens."""
    vocabulary_size: int

    @property
    def expert_parameters(self) -> int:
        """Gate, up and down projection."""
        return 3 * self.hidden_size * self.expert_ffn_size

    @property
    def expert_weight_size_bytes(self) -> int:
        """bf16 weights of one expert."""
        return _BF16 * self.expert_parameters

    @property
    def slot_size_bytes(self) -> int:
        """A redundant slot: bf16 weights and fp32 gradients."""
        return 3 * self.expert_weight_size_bytes

    @property
    def token_size_bytes(self) -> int:
        """What dispatch and combine of one token copy move together, in bf16."""
        return 2 * _BF16 * self.hidden_size

    def model(self) -> Model:
        """What planning needs to know."""
        return Model(
            num_layers=self.num_layers,
            num_experts=self.num_experts,
            top_k=self.top_k,
            expert_weight_size_bytes=self.expert_weight_size_bytes,
            expert_state_size_bytes=_STATE_BYTES_PER_PARAMETER * self.expert_parameters,
        )

    def layer_flop(self, num_tokens: float, sequence_length: float) -> float:
        """Forward FLOP of an MoE layer besides its routed experts: attention, router and shared experts."""
        shared = self.num_shared_experts * self.expert_parameters
        router = self.hidden_size * self.num_experts
        scores = 2 * sequence_length * self.attention_width  # causal: half of 4 x length x width
        return num_tokens * (2 * (self.attention_parameters + shared + router) + scores)

    def other_flop(self, num_tokens: float, sequence_length: float) -> float:
        """Forward FLOP outside MoE layers: dense layers and the output head."""
        dense = 2 * (self.attention_parameters + 3 * self.hidden_size * self.dense_ffn_size)
        scores = 2 * sequence_length * self.attention_width
        head = 2 * self.hidden_size * self.vocabulary_size
        return num_tokens * (self.num_dense_layers * (dense + scores) + head)


def _grouped_attention(hidden_size: int, num_heads: int, num_kv_heads: int, head_size: int) -> int:
    return hidden_size * head_size * (2 * num_heads + 2 * num_kv_heads)


def _latent_attention(hidden_size: int, num_heads: int, query_rank: int | None) -> int:
    """DeepSeek's multi-head latent attention: heads of 128 + 64 rotated, key and value of rank 512."""
    query = hidden_size * num_heads * 192 if query_rank is None else query_rank * (hidden_size + num_heads * 192)
    key_value = hidden_size * (512 + 64) + 512 * num_heads * 256
    return query + key_value + num_heads * 128 * hidden_size


MODELS = {
    each.name: each
    for each in (
        ModelPreset(
            name="qwen3-30b-a3b",
            num_layers=48,
            num_dense_layers=0,
            num_experts=128,
            top_k=8,
            hidden_size=2048,
            expert_ffn_size=768,
            dense_ffn_size=0,
            num_shared_experts=0,
            attention_parameters=_grouped_attention(2048, 32, 4, 128),
            attention_width=32 * 128,
            vocabulary_size=151_936,
        ),
        ModelPreset(
            name="glm-4.5-air",
            num_layers=45,
            num_dense_layers=1,
            num_experts=128,
            top_k=8,
            hidden_size=4096,
            expert_ffn_size=1408,
            dense_ffn_size=10_944,
            num_shared_experts=1,
            attention_parameters=_grouped_attention(4096, 96, 8, 128),
            attention_width=96 * 128,
            vocabulary_size=151_552,
        ),
        ModelPreset(
            name="qwen3-235b-a22b",
            num_layers=94,
            num_dense_layers=0,
            num_experts=128,
            top_k=8,
            hidden_size=4096,
            expert_ffn_size=1536,
            dense_ffn_size=0,
            num_shared_experts=0,
            attention_parameters=_grouped_attention(4096, 64, 4, 128),
            attention_width=64 * 128,
            vocabulary_size=151_936,
        ),
        ModelPreset(
            name="deepseek-v3",
            num_layers=58,
            num_dense_layers=3,
            num_experts=256,
            top_k=8,
            hidden_size=7168,
            expert_ffn_size=2048,
            dense_ffn_size=18_432,
            num_shared_experts=1,
            attention_parameters=_latent_attention(7168, 128, query_rank=1536),
            attention_width=128 * 160,
            vocabulary_size=129_280,
        ),
        ModelPreset(
            name="kimi-k2",
            num_layers=60,
            num_dense_layers=1,
            num_experts=384,
            top_k=8,
            hidden_size=7168,
            expert_ffn_size=2048,
            dense_ffn_size=18_432,
            num_shared_experts=1,
            attention_parameters=_latent_attention(7168, 64, query_rank=1536),
            attention_width=64 * 160,
            vocabulary_size=163_840,
        ),
        ModelPreset(
            name="gpt-oss-20b",
            num_layers=24,
            num_dense_layers=0,
            num_experts=32,
            top_k=4,
            hidden_size=2880,
            expert_ffn_size=2880,
            dense_ffn_size=0,
            num_shared_experts=0,
            attention_parameters=_grouped_attention(2880, 64, 8, 64),
            attention_width=64 * 64 // 2,  # every other layer looks back 128 tokens only: next to nothing
            vocabulary_size=201_088,
        ),
        ModelPreset(
            name="moonlight-16b",
            num_layers=26,
            num_dense_layers=1,
            num_experts=64,
            top_k=6,
            hidden_size=2048,
            expert_ffn_size=1408,
            dense_ffn_size=11_264,
            num_shared_experts=2,
            attention_parameters=_latent_attention(2048, 16, query_rank=None),
            attention_width=16 * 160,
            vocabulary_size=163_840,
        ),
    )
}
"""By name."""


def model_preset(name: str) -> ModelPreset:
    """Look a preset up.

    Raises:
        InvalidInput: there is none of that name.
    """
    if name not in MODELS:
        raise InvalidInput.of("model", expected=f"one of {', '.join(MODELS)}", got=name)
    return MODELS[name]
