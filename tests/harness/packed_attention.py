"""Attention over packed sequences for megatron-core on the CPU, which has none without Transformer Engine."""

import copy
import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch


@functools.cache
def install(*, is_zigzag: bool = True) -> None:
    """Let megatron's own attention take sequences that follow one another, each by itself, also over several ranks.

    A second call does nothing. All calls of a process must say the same.

    Args:
        is_zigzag: whether a context-parallel rank holds two chunks of every sequence, as megatron cuts them. If not,
            it holds one chunk of all sequences together, and attention knows no positions: megatron's rotary embedding
            knows the zigzag only.
    """
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    own, plain = DotProductAttention.__init__, DotProductAttention.forward

    def build(self: Any, config: Any, *args: Any, **options: Any) -> None:
        alone = copy.copy(config)
        alone.context_parallel_size = 1  # it refuses others
        own(self, alone, *args, **options)

    def forward(
        self: Any, query: Any, key: Any, value: Any, mask: Any, *args: Any, packed_seq_params: Any = None, **more: Any
    ) -> Any:
        if packed_seq_params is None:
            # A mask `[B, S]` names the padding behind each sequence, at which no token of it looks.
            return plain(self, query, key, value, None if mask is not None and mask.dim() == 2 else mask, *args, **more)
        bounds = packed_seq_params.cu_seqlens_q_padded
        bounds = (packed_seq_params.cu_seqlens_q if bounds is None else bounds).tolist()
        group = parallel_state.get_context_parallel_group()
        order_T = _zigzag(bounds, group.size()) if is_zigzag else torch.arange(bounds[-1])
        query_THD, key_THD, value_THD = (
            _gathered(each.squeeze(1) if each.dim() == 4 else each, order_T, group) for each in (query, key, value)
        )
        shared = query_THD.shape[1] // key_THD.shape[1]
        key_THD, value_THD = (each.repeat_interleave(shared, 1) for each in (key_THD, value_THD))
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(
                *(each[first:end].transpose(0, 1) for each in (query_THD, key_THD, value_THD)), is_causal=True
            ).transpose(0, 1)
            for first, end in pairwise(bounds)
        ]
        output_THD = torch.cat(outputs)[order_T.chunk(group.size())[group.rank()]]
        rows = output_THD.shape[0]
        return output_THD.reshape(rows, 1, -1) if query.dim() == 4 else output_THD.reshape(rows, -1)

    DotProductAttention.__init__ = build
    DotProductAttention.forward = forward
    if not is_zigzag:
        rope_utils._apply_rotary_pos_emb_thd = lambda rows_THD, *_, **__: rows_THD


def _zigzag(bounds: Sequence[int], num_ranks: int) -> torch.Tensor:
    """Return the rows of packed sequences in the order in which context-parallel ranks hold them, rank by rank."""
    chunks = [torch.arange(first, end).chunk(2 * num_ranks) for first, end in pairwise(bounds)]
    held = [of_sequence[place] for rank in range(num_ranks) for of_sequence in chunks for place in (rank, ~rank)]
    return torch.cat(held) if num_ranks > 1 else torch.arange(bounds[-1])


def _gathered(rows_THD: torch.Tensor, order_T: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the rows of all context-parallel ranks, in the order of the sequences; gradients are added up."""
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    if group.size() == 1:
        return rows_THD
    return gather_from_sequence_parallel_region(rows_THD, group=group)[order_T.argsort()]
