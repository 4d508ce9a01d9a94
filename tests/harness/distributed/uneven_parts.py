"""Gathers and scatters of parts of different sizes over gloo, which takes equal parts only.

They replace two functions of megatron (core 0.16.1, tensor_parallel/mappings.py), and give the same tensors.
"""

from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import mappings

_gather_even, _scatter_even = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim


def _gather(tensor, group, output_split_sizes=None, *args):
    if output_split_sizes is None or group.size() == 1:
        return _gather_even(tensor, group, output_split_sizes, *args)
    gathered = tensor.new_empty(sum(output_split_sizes), *tensor.shape[1:])
    sent = torch.cat([tensor] * group.size())
    dist.all_to_all_single(gathered, sent, list(output_split_sizes), [len(tensor)] * group.size(), group=group)
    return gathered


def _reduce_scatter(tensor, group, input_split_sizes=None, *args):
    if input_split_sizes is None or group.size() == 1:
        return _scatter_even(tensor, group, input_split_sizes, *args)
    size = input_split_sizes[group.rank()]
    parts = tensor.new_empty(group.size() * size, *tensor.shape[1:])
    dist.all_to_all_single(parts, tensor.contiguous(), [size] * group.size(), list(input_split_sizes), group=group)
    return parts.view(group.size(), size, *tensor.shape[1:]).sum(dim=0)


def uneven_parts():
    functions = {"_gather_along_first_dim": _gather, "_reduce_scatter_along_first_dim": _reduce_scatter}
    return mock.patch.multiple(mappings, **functions)
