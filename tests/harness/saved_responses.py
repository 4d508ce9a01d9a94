"""Responses of an SGLang server as a user saves them, and the `config.json` of their model."""

import numpy as np

from harness.engine_payloads import sglang
from relibra.routing import ModelLayers

LAYERS = ModelLayers.uniform(num_layers=24, num_experts=32, top_k=4)
CONFIG = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201_088,
}
PROMPT_TOKENS = 30


def response(index: int) -> dict[str, object]:
    """Return an answer of SGLang's `/generate`; every sequence prefers other experts."""
    rng = np.random.default_rng(index)
    favour_LE = np.log(rng.gamma(0.5, 2.0, (24, 32)) + 1e-6)
    rows_TLK = np.argsort(-(rng.gumbel(size=(100 + index, 24, 32)) + favour_LE), axis=-1)[..., :4]
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": len(rows_TLK) + 1 - PROMPT_TOKENS}
    return {
        "text": "...",
        "output_ids": [0] * usage["completion_tokens"],
        "meta_info": {"id": f"{index:032x}", "finish_reason": {"type": "stop"}, "cached_tokens": 0}
        | {"routed_experts": sglang(rows_TLK, LAYERS)}
        | usage,
    }
