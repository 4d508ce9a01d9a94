"""Transformer Engine's fused permutations do what their stand-in of other tests does. Skipped without the package."""

import pytest
import torch

from harness import te_permutation

permutation = pytest.importorskip("transformer_engine.pytorch.permutation")


def test_S5_the_stand_in_permutes_as_transformer_engine() -> None:
    """Some columns are empty, as those of slots without a replica, and some tokens have fewer copies than others."""
    generator = torch.Generator().manual_seed(0)
    routing_map = torch.rand(96, 10, generator=generator) < 0.2
    routing_map[:, [3, 7]] = False
    probs = torch.rand(routing_map.shape, generator=generator) * routing_map
    tokens, num_rows = torch.rand(96, 64, generator=generator), int(routing_map.sum())
    want = te_permutation.moe_permute_with_probs(tokens, probs, routing_map, num_rows)
    got = permutation.moe_permute_with_probs(tokens.cuda(), probs.cuda(), routing_map.cuda(), num_rows)
    assert torch.equal(got[0].cpu(), want[0])
    assert torch.equal(got[1].cpu(), want[1])
    back = te_permutation.moe_unpermute(want[0], want[2], restore_shape=tokens.shape)
    assert torch.allclose(permutation.moe_unpermute(got[0], got[2], restore_shape=tokens.shape).cpu(), back)


def test_S5_the_stand_in_sorts_chunks_as_transformer_engine() -> None:
    sizes, order = torch.tensor([3, 0, 5, 2]), torch.tensor([2, 0, 3, 1])
    tokens = torch.rand(10, 16, generator=torch.Generator().manual_seed(0))
    want = te_permutation.moe_sort_chunks_by_index_with_probs(tokens, tokens[:, 0], sizes, order)
    got = permutation.moe_sort_chunks_by_index_with_probs(
        tokens.cuda(), tokens[:, 0].contiguous().cuda(), sizes.cuda(), order.cuda()
    )
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, want, strict=True))
