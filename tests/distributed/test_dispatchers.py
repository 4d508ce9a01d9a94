"""A GPT trains under random plans through every dispatcher as under plain megatron-core with the same one (S5).

DeepEP, HybridEP and the fused permutations of Transformer Engine need GPUs. Here megatron's code for them runs over
stand-ins (`harness.deep_ep_on_gloo`, `harness.te_permutation`).
"""

import pytest

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import contextlib
    from unittest import mock

    import torch
    import torch.distributed as dist
    from megatron.core.transformer.moe import fused_a2a
    from megatron.core.transformer.moe.router import TopKRouter

    from harness import te_permutation, te_router
    from harness.deep_ep_on_gloo.normal import Buffer
    from harness.distributed.comparison import (
        EXPERTS,
        assert_active,
        assert_equal,
        compare,
        rounding,
    )
    from harness.distributed.gpt_job import GptJob
    from harness.distributed.gpt_model import HIDDEN, RECOMPUTE
    from relibra.agent import Agent
    from relibra.agent.megatron import dispatchers

WAY = {"sharded": False, "bf16": False}
FLEX = {"moe_token_dispatcher_type": "flex"}
DEEPEP = FLEX | {"moe_flex_dispatcher_backend": "deepep"}
HYBRIDEP = FLEX | {"moe_flex_dispatcher_backend": "hybridep"}
FUSED = {"moe_permute_fusion": True}
CAPACITY = {"moe_expert_capacity_factor": 1.0}
NATIVE = pytest.mark.parametrize(
    "native", [False, pytest.param(True, marks=pytest.mark.long)], ids=["replayed", "routers_decide"]
)


def zero_probabilities():
    """Let routers give every third token probability 0 for one of its experts."""
    plain = TopKRouter.routing

    def routing(self, *args, **kwargs):
        probs, routing_map = plain(self, *args, **kwargs)
        is_zero = routing_map & (routing_map.cumsum(dim=1) == 1)
        is_zero[1::3] = is_zero[2::3] = False
        return probs * ~is_zero, routing_map

    return mock.patch.object(TopKRouter, "routing", routing)


def assert_trains_as_plain(got):
    assert_active(got)
    assert_equal(got)


@NATIVE
@on_ranks(EP4)
def test_S5_through_deepep_it_trains_as_plain_megatron(cluster, native):
    """Its router has fp64 and gives some copies probability 0."""
    with zero_probabilities():
        experts = DEEPEP | {"moe_router_dtype": "fp64", "native": native}
        assert_trains_as_plain(compare(cluster, **WAY, experts=experts))


@NATIVE
@on_ranks(EP4)
def test_S5_through_hybridep_it_trains_as_plain_megatron_and_has_room_for_redundant_slots(cluster, native):
    fused_a2a.reset_hybrid_ep_buffer()
    experts = HYBRIDEP | {"num_experts": 4 * cluster.num_ranks, "native": native}
    assert_trains_as_plain(compare(cluster, sharded=True, bf16=False, experts=experts, **RECOMPUTE["full"]))
    config = fused_a2a._hybrid_ep_buffer.config
    assert config.num_of_experts_per_rank == 6, "four experts and two redundant slots"


@pytest.mark.long
@on_ranks(EP4)
def test_S5_through_allgather_it_trains_as_plain_megatron(cluster):
    """Its router has the dtype of the model."""
    experts = {"moe_token_dispatcher_type": "allgather", "moe_router_dtype": None}
    assert_trains_as_plain(compare(cluster, **WAY, experts=experts))


@pytest.mark.long
@on_ranks(EP4)
def test_S5_through_a_fused_permutation_it_trains_as_plain_megatron(cluster):
    with te_permutation.installed():
        assert_trains_as_plain(compare(cluster, **WAY, experts=FUSED))


@pytest.mark.long
@on_ranks(EP4)
def test_S5_with_a_fused_router_it_trains_as_plain_megatron(cluster):
    """Fused routers decide, as they ignore replay."""
    with te_router.installed(), mock.patch.object(Agent, "set_routing"):
        options = {"moe_router_fusion": True, "moe_enable_routing_replay": False}
        assert_trains_as_plain(compare(cluster, **WAY, experts=options))


@on_ranks(EP4)
def test_S5_what_runs_in_production_differs_from_plain_megatron_as_two_plain_runs_do(cluster):
    """DeepEP with bf16, grouped experts, fused permutation, full recomputation and the distributed optimizer."""
    experts = DEEPEP | FUSED | EXPERTS["grouped_fused"]
    with te_permutation.installed():
        got = compare(cluster, sharded=True, bf16=True, experts=experts, **RECOMPUTE["full"])
        of_plain = rounding(cluster, sharded=True, experts=experts)
    assert_active(got)
    for kind in ("grad", "grad_norm", "moments", "weights"):
        assert 0 < got.worst[kind] <= of_plain[kind] / 4, (kind, got.worst[kind], of_plain[kind])


@pytest.mark.parametrize("is_deepep", [pytest.param(False, marks=pytest.mark.long), True])
@on_ranks(EP4)
def test_S5_dropped_tokens_train_as_plain_megatron(cluster, is_deepep):
    experts = CAPACITY | (DEEPEP | FUSED if is_deepep else {"moe_token_drop_policy": "position"})
    with te_permutation.installed() if is_deepep else contextlib.nullcontext():
        got = compare(cluster, **WAY, experts=experts)
    assert_active(got, drops=True)
    assert_equal(got)


@on_ranks(EP4)
def test_S5_the_comparison_sees_a_copy_that_deepep_is_not_told(cluster):
    """Hand over the copies of each token but one."""
    plain = dispatchers.hand_over_copies

    def hand_over(manager):
        plain(manager)
        complete = manager.setup_metadata

        def setup_metadata(routing_map, probs):
            complete(routing_map, probs)
            manager.token_indices[:, -1] = -1

        manager.setup_metadata = setup_metadata

    with mock.patch.object(dispatchers, "hand_over_copies", hand_over), zero_probabilities():
        assert compare(cluster, **WAY, experts=DEEPEP | {"moe_router_dtype": "fp64"}).worst["grad"] > 0.1


@on_ranks(EP4)
def test_deepep_is_told_the_copies_of_the_routing_map(cluster):
    """Megatron takes the slots with the largest probabilities, which finds slots that no token was routed to."""
    plain = next(iter(GptJob(cluster, **DEEPEP).moe_layers.values()))
    num_slots, num_tokens, num_ranks = plain.num_local_experts + cluster.redundant_slots, 16, cluster.num_ranks
    generator = torch.Generator().manual_seed(dist.get_rank())
    slot_T2 = torch.stack([torch.randperm(num_slots * num_ranks, generator=generator)[:2] for _ in range(num_tokens)])
    routing_map = torch.zeros(num_tokens, num_slots * num_ranks, dtype=torch.bool).scatter(1, slot_T2, True)
    probs = torch.rand(routing_map.shape, generator=generator) * routing_map
    probs[0, slot_T2[0, 0]] = 0.0
    routing_map[1, slot_T2[1, 0]] = False
    probs *= routing_map

    def told_of(manager):
        told = torch.zeros(num_tokens, routing_map.shape[1] + 1, dtype=torch.bool)
        told.scatter_(1, manager.token_indices.where(manager.token_indices >= 0, routing_map.shape[1]), True)
        return told[:, :-1]

    def dispatched(hand_over):
        with mock.patch.object(dispatchers, "hand_over_copies", hand_over):
            over = dispatchers.over_slots(plain.token_dispatcher, plain.config, 0, num_slots, num_ranks)
        over.dispatch_preprocess(torch.zeros(num_tokens, 1, HIDDEN), routing_map, probs)
        return over._comm_manager

    manager = dispatched(dispatchers.hand_over_copies)
    assert torch.equal(told_of(manager), routing_map)
    assert torch.isclose(manager.token_probs.sum(), probs.sum())
    assert (told_of(dispatched(lambda _: None)) & ~routing_map).any()


@on_ranks(EP4)
def test_the_stand_in_for_deepep_does_what_the_package_promises(cluster):
    """Dispatch and combine, and compare with the arithmetic that its pages promise."""
    rank, num_ranks, num_local, top_k = dist.get_rank(), cluster.num_ranks, 3, 2
    inputs = []
    for other in range(num_ranks):
        generator = torch.Generator().manual_seed(other)
        num_tokens = 5 + other
        scores = torch.rand(num_tokens, num_ranks * num_local, generator=generator)
        weights, idx = scores.topk(top_k, dim=-1)
        idx[0, 0] = idx[1, 0] = idx[1, 1] = -1
        inputs.append((torch.rand(num_tokens, 8, generator=generator), idx, weights))
    x, idx, weights = inputs[rank]
    buffer = Buffer(dist.group.WORLD, 1, 0)
    per_rank, _, per_expert, is_in_rank, _ = buffer.get_dispatch_layout(idx, num_ranks * num_local)
    layout = {"num_tokens_per_rank": per_rank, "num_tokens_per_expert": per_expert, "is_token_in_rank": is_in_rank}
    received, got_idx, got_weights, counts, handle, _ = buffer.dispatch(x, topk_idx=idx, topk_weights=weights, **layout)
    want = [
        (x[t], idx[t], weights[t])
        for x, idx, weights in inputs
        for t in range(len(x))
        if (idx[t] // num_local == rank).any()
    ]
    want_x, want_idx, want_weights = map(torch.stack, zip(*want, strict=True))
    is_own = want_idx // num_local == rank
    assert torch.equal(received, want_x)
    assert torch.equal(got_idx, torch.where(is_own, want_idx % num_local, -1))
    assert torch.equal(got_weights, want_weights * is_own)
    assert counts == [int((got_idx == expert).sum()) for expert in range(num_local)]
    again = buffer.dispatch(x, handle=handle)
    assert torch.equal(again[0], received)
    assert again[1:5] == (None, None, None, None)
    summed, summed_weights, _ = buffer.combine(received * (rank + 1), handle, topk_weights=got_weights)
    factor = torch.stack([((idx // num_local == other).any(dim=-1) * (other + 1)) for other in range(num_ranks)]).sum(0)
    assert torch.allclose(summed, x * factor.unsqueeze(-1))
    assert torch.equal(summed_weights, weights * (idx >= 0))
