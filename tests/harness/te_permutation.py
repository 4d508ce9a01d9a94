"""A stand-in for the fused permutations of Transformer Engine on CPU tensors, so that `moe_permute_fusion` runs.

It follows transformer_engine/pytorch/permutation.py of Transformer Engine 2.9 for maps of type 'mask' without fp8: the
names and order of arguments and results, the assertions, the shapes and the order of rows, and the early returns for
empty inputs. Rows that the kernels leave uninitialised are NaN here. The content of a row id map is the stand-in's own.

T tokens, E experts, M permuted rows.
"""

import contextlib
from contextlib import AbstractContextManager
from unittest import mock

import torch
from torch import Tensor


def moe_permute(
    inp: Tensor, routing_map: Tensor, num_out_tokens: int, max_token_num: int = -1, map_type: str = "mask"
) -> tuple[Tensor, Tensor]:
    assert map_type == "mask"
    output, row_id_map, _ = _permuted(inp, routing_map, num_out_tokens, None)
    return output, row_id_map


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    output, row_id_map, permuted_probs = _permuted(inp, routing_map, num_out_tokens, probs)
    return output, permuted_probs, row_id_map


def _permuted(
    inp: Tensor, routing_map: Tensor, num_out_tokens: int, probs: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    if not inp.numel():
        return inp, torch.tensor([]), torch.tensor([])
    assert inp.shape[0] == routing_map.shape[0], "Permute not possible"
    assert num_out_tokens is not None, "num_out_tokens must be provided to the fused permute function."
    num_tokens, num_experts = routing_map.shape
    expert_M, token_M = routing_map.bool().T.nonzero(as_tuple=True)
    assert len(token_M) <= int(num_out_tokens), "the kernel would write beyond its output"
    row_id_map = torch.full((num_tokens, 2 * num_experts + 1), -1, dtype=torch.int32)
    row_id_map[token_M, expert_M] = torch.arange(len(token_M), dtype=torch.int32)
    row_id_map[:, -1] = routing_map.sum(dim=1)
    row_M = torch.arange(len(token_M))
    output = inp.new_full((int(num_out_tokens), inp.shape[1]), torch.nan).index_copy(0, row_M, inp[token_M])
    if probs is None:
        return output, row_id_map, torch.tensor([])
    permuted_probs = probs.new_full((int(num_out_tokens),), torch.nan)
    return output, row_id_map, permuted_probs.index_copy(0, row_M, probs[token_M, expert_M])


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: torch.Size | None = None,
    map_type: str = "mask",
) -> Tensor:
    assert map_type == "mask"
    if not inp.numel():
        return inp
    num_tokens, hidden_size = restore_shape or inp.shape
    num_experts = (row_id_map.shape[1] - 1) // 2
    token_M, expert_M = (row_id_map[:, :num_experts] >= 0).nonzero(as_tuple=True)
    rows = inp[row_id_map[token_M, expert_M].long()].float()
    if merging_probs is not None:
        rows = rows * merging_probs[token_M, expert_M].unsqueeze(-1)
    return torch.zeros(num_tokens, hidden_size).index_add(0, token_M, rows).to(inp.dtype)


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    return _sorted(inp, split_sizes, sorted_index)


def moe_sort_chunks_by_index_with_probs(
    inp: Tensor, probs: Tensor, split_sizes: Tensor, sorted_index: Tensor
) -> tuple[Tensor, Tensor]:
    return _sorted(inp, split_sizes, sorted_index), _sorted(probs, split_sizes, sorted_index)


def _sorted(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    if not inp.numel():
        return inp
    assert len(split_sizes) == len(sorted_index)
    chunks = torch.split(inp, split_sizes.tolist())
    return torch.cat([chunks[index] for index in sorted_index.tolist()])


def installed() -> AbstractContextManager[object]:
    """Let megatron use the stand-in within the body."""
    from megatron.core.transformer.moe import moe_utils

    stack = contextlib.ExitStack()
    for name, function in {
        "HAVE_TE": True,
        "fused_permute": moe_permute,
        "fused_permute_with_probs": moe_permute_with_probs,
        "fused_sort_chunks_by_index": moe_sort_chunks_by_index,
        "fused_sort_chunks_by_index_with_probs": moe_sort_chunks_by_index_with_probs,
        "fused_unpermute": moe_unpermute,
    }.items():
        stack.enter_context(mock.patch.object(moe_utils, name, function, create=True))
    return stack
