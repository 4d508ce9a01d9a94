"""Which scenarios run on which arrangement of four ranks."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import checkpoints
import faults
import matrix
import mutations
import torch
from scenarios import (
    Result,
    both_phases,
    detachment,
    fallbacks,
    gpt_recompute,
    guard,
    mutated,
    neutrality,
    no_gradient_return,
    no_moments_moved,
    no_wait_for_gathering,
    refusals,
    ungathered,
)

from relibra.planning import Cluster


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How four ranks are arranged, and what they do one after the other."""

    cluster: Cluster
    scenarios: dict[str, Callable[[Cluster], Result]]
    num_stages: int = 1
    num_chunks: int | None = None
    """Virtual pipeline stages of a stage."""


EP4 = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
EP2_EDP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=3, num_ep_groups=2)
EP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
SHARDED: dict[str, Any] = {"use_distributed_optimizer": True}
OVERLAPPED: dict[str, Any] = SHARDED | {"overlap_grad_reduce": True, "overlap_param_gather": True}
BF16: dict[str, Any] = {"bf16": True, "params_dtype": torch.bfloat16}
DISTRIBUTED_OPTIMIZER: dict[str, Callable[[Cluster], Result]] = {
    "sharded": functools.partial(neutrality, ddp=SHARDED),
    "sharded_overlap": functools.partial(neutrality, ddp=OVERLAPPED, in_flight=False),
    "sharded_reorder_only": functools.partial(neutrality, ddp=OVERLAPPED, plan={"replicate": False}, clip_grad=0.0),
    "sharded_bf16_reorder_only": functools.partial(
        neutrality, ddp=OVERLAPPED, plan={"replicate": False}, clip_grad=0.0, **BF16
    ),
    "sharded_bf16": functools.partial(neutrality, ddp=OVERLAPPED, **BF16),
    "sharded_no_wait": functools.partial(
        mutated, mutation=no_wait_for_gathering, ddp=OVERLAPPED, plan={"move": False}, in_flight=False
    ),
    "sharded_stay": functools.partial(
        mutated, mutation=ungathered, ddp=OVERLAPPED, plan={"move": False}, in_flight=False
    ),
    "sharded_no_moments_moved": functools.partial(mutated, mutation=no_moments_moved, ddp=SHARDED),
}
ROUND_TRIPS: dict[str, dict[str, Any]] = {
    "ep4_to_ep4": {"saved_with": checkpoints.FOUR_RANKS, "loaded_with": checkpoints.FOUR_RANKS},
    "ep4_to_ep2_sharded_bf16": {
        "saved_with": checkpoints.FOUR_RANKS,
        "loaded_with": checkpoints.TWO_GROUPS,
        "sharded": True,
        "bf16": True,
    },
    "ep2_to_ep4_sharded": {
        "saved_with": checkpoints.TWO_GROUPS,
        "loaded_with": checkpoints.FOUR_RANKS,
        "sharded": True,
    },
}
LAYOUTS = {
    "two_nodes": Layout(
        cluster=EP4,
        scenarios={
            "adam": neutrality,
            "sgd": functools.partial(neutrality, optimizer="sgd", in_flight=False),
            "recompute": functools.partial(neutrality, recompute_granularity="selective", recompute_modules=["moe"]),
            "bias": functools.partial(neutrality, add_bias_linear=True),
            "reorder_only": functools.partial(neutrality, plan={"replicate": False}, clip_grad=0.0),
            "reorder_only_bf16": functools.partial(
                neutrality, plan={"replicate": False}, clip_grad=0.0, bf16=True, params_dtype=torch.bfloat16
            ),
            "bf16": functools.partial(neutrality, bf16=True, params_dtype=torch.bfloat16),
            "no_gradient_return": functools.partial(mutated, mutation=no_gradient_return),
            "no_moments_moved": functools.partial(mutated, mutation=no_moments_moved),
            **DISTRIBUTED_OPTIMIZER,
            "fallbacks": fallbacks,
            "both_phases": both_phases,
            "gpt_recompute": gpt_recompute,
            "guard": guard,
            "detachment": detachment,
            "refusals": refusals,
            "reorder_undone": faults.undone,
            "cannot_be_undone": faults.cannot_be_undone,
        },
    ),
    "two_groups": Layout(
        cluster=EP2_EDP2,
        scenarios={
            "adam": functools.partial(neutrality, ddp={"overlap_grad_reduce": True}),
            "sgd": functools.partial(neutrality, optimizer="sgd", in_flight=False),
            "reorder_only": functools.partial(neutrality, plan={"replicate": False}, clip_grad=0.0),
            **DISTRIBUTED_OPTIMIZER,
            "sharded_reorder_undone": functools.partial(faults.undone, ddp=OVERLAPPED),
        },
    ),
    "gpt_ep4": Layout(
        cluster=EP4,
        scenarios=matrix.SCENARIOS
        | {"no_replay": mutations.no_replay, "forgetful_checkpoints": mutations.forgetful_checkpoints},
    ),
    "checkpoints": Layout(
        cluster=EP4,
        scenarios={
            "refused": checkpoints.refused,
            **{name: functools.partial(checkpoints.round_trip, **options) for name, options in ROUND_TRIPS.items()},
        },
    ),
    "gpt_ep2_edp2": Layout(cluster=EP2_EDP2, scenarios=matrix.SCENARIOS),
    "gpt_ep2_pp2": Layout(cluster=EP2, scenarios=matrix.SCENARIOS, num_stages=2),
    "gpt_ep2_vpp": Layout(cluster=EP2, scenarios=matrix.SCENARIOS, num_stages=2, num_chunks=2),
}
