"""EPLB as published, as the yardstick for plan times: torch tensors, all layers at once, Python loops inside.

`relibra.evaluation.baselines.eplb` implements the same recipe for its results. This implementation is for its cost: it
is a reimplementation that vectorises and loops exactly where deepseek-ai/EPLB (commit d52c72d) does.

L layers (or layers x nodes), X items, E logical experts, P physical experts.
"""

import torch
from torch import Tensor


def rebalance_experts(weight_LE: Tensor, num_physical: int, num_groups: int, num_nodes: int, num_ranks: int) -> Tensor:
    """Return the logical expert of every physical expert, int64 `[L, P]`, rank by rank.

    Args:
        weight_LE: the load of every logical expert.
        num_physical: P, a multiple of `num_ranks`.
        num_groups: the number of expert groups, a multiple of `num_nodes`; E if experts are not grouped.
        num_nodes: N.
        num_ranks: R.
    """
    num_layers, num_experts = weight_LE.shape
    weight_LE = weight_LE.float().cpu()
    group_size = num_experts // num_groups

    node_of_group, place_in_node = pack(weight_LE.unflatten(-1, (num_groups, group_size)).sum(-1), num_nodes)
    first_of_group = (node_of_group * (num_groups // num_nodes) + place_in_node) * group_size
    by_node_LE = (first_of_group.unsqueeze(-1) + torch.arange(group_size)).flatten(-2)
    logical_LE = invert(by_node_LE)

    weight_in_node = weight_LE.gather(-1, logical_LE).view(num_layers * num_nodes, num_experts // num_nodes)
    copy_of, num_copies = replicate(weight_in_node, num_physical // num_nodes)

    share = (weight_in_node / num_copies).gather(-1, copy_of)
    rank_of_copy, place_in_rank = pack(share, num_ranks // num_nodes)
    physical = invert(rank_of_copy * (num_physical // num_ranks) + place_in_rank)

    in_node = copy_of.gather(-1, physical).view(num_layers, num_nodes, -1)
    first_in_node = torch.arange(0, num_experts, num_experts // num_nodes).view(1, -1, 1)
    return logical_LE.gather(-1, (in_node + first_in_node).flatten(-2))


def pack(weight_LX: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Pack longest processing time first into bins of equal count; return the bin of every item and its place there."""
    num_layers, num_items = weight_LX.shape
    capacity = num_items // num_bins
    if capacity == 1:
        return torch.arange(num_items).expand(weight_LX.shape), torch.zeros_like(weight_LX, dtype=torch.int64)
    order = weight_LX.float().sort(-1, descending=True).indices
    bin_of = torch.full_like(weight_LX, -1, dtype=torch.int64)
    place = torch.full_like(bin_of, -1)
    for layer in range(num_layers):
        weights, counts = [0.0] * num_bins, [0] * num_bins
        for item in order[layer]:
            lightest = min((each for each in range(num_bins) if counts[each] < capacity), key=weights.__getitem__)
            bin_of[layer, item] = lightest
            place[layer, item] = counts[lightest]
            weights[lightest] += weight_LX[layer, item]
            counts[lightest] += 1
    return bin_of, place


def replicate(weight_LX: Tensor, num_copies: int) -> tuple[Tensor, Tensor]:
    """Give copy after copy to the item with the most weight per copy; return each copy's item, and copies per item."""
    num_layers, num_items = weight_LX.shape
    copy_of = torch.arange(num_copies).repeat(num_layers, 1)
    counts = torch.ones(num_layers, num_items, dtype=torch.int64)
    layer_L = torch.arange(num_layers)
    for copy in range(num_items, num_copies):
        hottest_L = (weight_LX / counts).max(dim=-1).indices
        copy_of[:, copy] = hottest_L
        counts[layer_L, hottest_L] += 1
    return copy_of, counts


def invert(permutation_LX: Tensor) -> Tensor:
    """Return the inverse of every row."""
    index_LX = torch.arange(permutation_LX.shape[1]).expand(permutation_LX.shape)
    return torch.empty_like(permutation_LX).scatter_(1, permutation_LX, index_LX)
