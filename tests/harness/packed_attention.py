"""Attention over packed sequences for megatron-core on the CPU, which has none without Transformer Engine."""

from itertools import pairwise
from typing import Any

import torch


def install() -> None:
    """Let megatron's own attention take sequences that follow one another, each by itself."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    plain = DotProductAttention.forward

    def forward(
        self: Any, query: Any, key: Any, value: Any, *args: Any, packed_seq_params: Any = None, **more: Any
    ) -> Any:
        if packed_seq_params is None:
            return plain(self, query, key, value, *args, **more)
        query_THD, key_THD, value_THD = (each.squeeze(1) if each.dim() == 4 else each for each in (query, key, value))
        bounds = packed_seq_params.cu_seqlens_q_padded
        bounds = (packed_seq_params.cu_seqlens_q if bounds is None else bounds).tolist()
        shared = query_THD.shape[1] // key_THD.shape[1]
        key_THD, value_THD = (each.repeat_interleave(shared, 1) for each in (key_THD, value_THD))
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(
                *(each[first:end].transpose(0, 1) for each in (query_THD, key_THD, value_THD)), is_causal=True
            ).transpose(0, 1)
            for first, end in pairwise(bounds)
        ]
        output_THD = torch.cat(outputs)
        rows = output_THD.shape[0]
        return output_THD.reshape(rows, 1, -1) if query.dim() == 4 else output_THD.reshape(rows, -1)

    DotProductAttention.forward = forward
