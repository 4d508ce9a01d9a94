"""Scenarios that train through every dispatcher of megatron, plain and balanced side by side."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.transformer.moe import fused_a2a
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from harness import te_permutation, te_router
from harness.deep_ep_on_gloo.normal import Buffer
from harness.distributed.gpt_job import GptJob
from harness.distributed.gpt_model import HIDDEN, RECOMPUTE
from harness.distributed.matrix import EXPERTS, compare, rounding
from relibra.agent import Agent
from relibra.agent.megatron import dispatchers
from relibra.planning import Cluster

Result = dict[str, Any]
WAY: dict[str, Any] = {"sharded": False, "bf16": False}
SHARDED: dict[str, Any] = {"sharded": True, "bf16": False, **RECOMPUTE["full"]}
DEEPEP: dict[str, Any] = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "deepep"}
HYBRIDEP: dict[str, Any] = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
ALLGATHER: dict[str, Any] = {"moe_token_dispatcher_type": "allgather"}
FUSED: dict[str, Any] = {"moe_permute_fusion": True}
PRODUCTION: dict[str, Any] = DEEPEP | FUSED | EXPERTS["grouped_fused"]
CAPACITY: dict[str, Any] = {"moe_expert_capacity_factor": 1.0}


@contextlib.contextmanager
def zero_probabilities() -> Iterator[None]:
    """Let routers give every third token probability 0 for one of its experts."""
    plain = TopKRouter.routing

    def routing(self: TopKRouter, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        probs, routing_map = plain(self, *args, **kwargs)
        is_zero = routing_map & (routing_map.cumsum(dim=1) == 1)
        is_zero[1::3] = is_zero[2::3] = False
        return probs * ~is_zero, routing_map

    with mock.patch.object(TopKRouter, "routing", routing):
        yield


def deepep(cluster: Cluster) -> Result:
    with zero_probabilities():
        return compare(cluster, **WAY, experts=DEEPEP | {"moe_router_dtype": "fp64"})


def deepep_copy_lost(cluster: Cluster) -> Result:
    """Mutation: hand over the copies of each token but one."""
    plain = dispatchers.hand_over_copies

    def hand_over(manager: Any) -> None:
        plain(manager)
        complete = manager.setup_metadata

        def setup_metadata(routing_map: Tensor, probs: Tensor) -> None:
            complete(routing_map, probs)
            manager.token_indices[:, -1] = -1

        manager.setup_metadata = setup_metadata

    with mock.patch.object(dispatchers, "hand_over_copies", hand_over):
        return deepep(cluster)


def deepep_capacity(cluster: Cluster) -> Result:
    with te_permutation.installed():
        return compare(cluster, **WAY, experts=DEEPEP | FUSED | CAPACITY)


def deepep_as_in_production(cluster: Cluster) -> Result:
    with te_permutation.installed():
        return compare(cluster, sharded=True, bf16=True, experts=PRODUCTION, **RECOMPUTE["full"])


def deepep_rounding(cluster: Cluster) -> Result:
    with te_permutation.installed():
        return rounding(cluster, sharded=True, experts=PRODUCTION)


def hybridep(cluster: Cluster) -> Result:
    fused_a2a.reset_hybrid_ep_buffer()
    result = compare(cluster, **SHARDED, experts=HYBRIDEP | {"num_experts": 4 * cluster.num_ranks})
    buffer = fused_a2a._hybrid_ep_buffer
    return result | {"num_experts_of_buffer": buffer.config.num_of_experts_per_rank}


def fused_permutation(cluster: Cluster) -> Result:
    with te_permutation.installed():
        return compare(cluster, **WAY, experts=FUSED)


def fused_router(cluster: Cluster) -> Result:
    """Let fused routers decide, as they ignore replay."""
    with te_router.installed(), mock.patch.object(Agent, "set_routing"):
        options = {"moe_router_fusion": True, "moe_enable_routing_replay": False}
        return compare(cluster, **WAY, experts=options)


def slots_of_copies(cluster: Cluster) -> Result:
    """Count the slots outside of the routing map that DeepEP is told, with and without the copies handed over."""
    plain = next(iter(GptJob(cluster, **DEEPEP).moe_layers.values()))
    num_slots, found = plain.num_local_experts + cluster.redundant_slots, {}
    generator = torch.Generator().manual_seed(dist.get_rank())
    num_tokens, num_ranks = 16, cluster.num_ranks
    slot_T2 = torch.stack([torch.randperm(num_slots * num_ranks, generator=generator)[:2] for _ in range(num_tokens)])
    routing_map = torch.zeros(num_tokens, num_slots * num_ranks, dtype=torch.bool).scatter(1, slot_T2, True)
    probs = torch.rand(routing_map.shape, generator=generator) * routing_map
    probs[0, slot_T2[0, 0]] = 0.0
    routing_map[1, slot_T2[1, 0]] = False
    probs *= routing_map
    for name, hand_over in (("handed over", dispatchers.hand_over_copies), ("largest", lambda _: None)):
        with mock.patch.object(dispatchers, "hand_over_copies", hand_over):
            over = dispatchers.over_slots(plain.token_dispatcher, plain.config, 0, num_slots, num_ranks)
        over.dispatch_preprocess(torch.zeros(num_tokens, 1, HIDDEN), routing_map, probs)
        manager = over._comm_manager
        told = torch.zeros(num_tokens, routing_map.shape[1] + 1, dtype=torch.bool)
        told.scatter_(1, manager.token_indices.where(manager.token_indices >= 0, routing_map.shape[1]), True)
        found[name] = {
            "outside": int((told[:, :-1] & ~routing_map).sum()),
            "missing": int((routing_map & ~told[:, :-1]).sum()),
            "is_sum_kept": bool(torch.isclose(manager.token_probs.sum(), probs.sum())),
        }
    return found


def contract(_: Cluster) -> Result:
    """Dispatch and combine with the stand-in for DeepEP, and compare with the arithmetic that its pages promise."""
    rank, num_ranks, num_local, top_k = dist.get_rank(), dist.get_world_size(), 3, 2
    inputs = []
    for each in range(num_ranks):
        generator = torch.Generator().manual_seed(each)
        num_tokens = 5 + each
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
    is_own = torch.stack([idx // num_local == rank for _, idx, _ in want])
    again = buffer.dispatch(x, handle=handle)
    summed, summed_weights, _ = buffer.combine(received * (rank + 1), handle, topk_weights=got_weights)
    factor = torch.stack([((idx // num_local == other).any(dim=-1) * (other + 1)) for other in range(num_ranks)]).sum(0)
    return {
        "x": torch.equal(received, torch.stack([x for x, _, _ in want])),
        "idx": torch.equal(got_idx, torch.where(is_own, torch.stack([idx for _, idx, _ in want]) % num_local, -1)),
        "weights": torch.equal(got_weights, torch.stack([weights for _, _, weights in want]) * is_own),
        "counts": counts == [int((got_idx == expert).sum()) for expert in range(num_local)],
        "again": torch.equal(again[0], received) and again[1:5] == (None, None, None, None),
        "combined": torch.allclose(summed, x * factor.unsqueeze(-1)),
        "combined_weights": torch.equal(summed_weights, weights * (idx >= 0)),
    }


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    "contract": contract,
    "slots_of_copies": slots_of_copies,
    "deepep": deepep,
    "deepep_copy_lost": deepep_copy_lost,
    "deepep_capacity": deepep_capacity,
    "deepep_as_in_production": deepep_as_in_production,
    "deepep_rounding": deepep_rounding,
    "allgather": functools.partial(compare, **WAY, experts=ALLGATHER | {"moe_router_dtype": None}),
    "capacity": functools.partial(compare, **WAY, experts=CAPACITY | {"moe_token_drop_policy": "position"}),
    "fused_permutation": fused_permutation,
    "fused_router": fused_router,
    "hybridep": hybridep,
}
