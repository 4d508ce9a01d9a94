"""The layouts: arrangements of ranks, each with the scenarios that run on it."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.distributed import (
    attachments,
    checkpoints,
    copies,
    cut_experts,
    deaths,
    dispatchers,
    exports,
    faults,
    fp8,
    graphs,
    host_waits,
    hot_path,
    integration_page,
    layers,
    matrix,
    mutations,
    on_cuda,
    optimizers,
    otherwise,
    planner_outage,
    reductions,
    refusals,
    replicas,
    restored_replicas,
    sleep,
    slime,
    slime_plugin,
    timeline,
)
from harness.distributed.scenarios import (
    Result,
    both_phases,
    fallbacks,
    fifty_reorders,
    mutated,
    neutrality,
    no_gradient_return,
    no_inner_parameters_moved,
    no_moments_moved,
    no_scales_moved,
    no_wait_for_gathering,
    ungathered,
)
from relibra.planning import Cluster


@dataclass(frozen=True, kw_only=True)
class Layout:
    """An arrangement of ranks, and the scenarios that they run one after the other."""

    cluster: Cluster
    scenarios: dict[str, Callable[[Cluster], Result]]
    num_ranks: int = 4
    tensor_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    context_parallel_size: int = 1
    num_stages: int = 1
    num_chunks: int | None = None
    """The number of virtual stages per pipeline stage."""
    is_fatal: bool = False
    """Whether some ranks end in the last scenario."""


EP4 = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
EP2_EDP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=3, num_ep_groups=2)
EP2 = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
EP1 = Cluster(num_nodes=1, gpus_per_node=1, redundant_slots=2)
SHARDED: dict[str, Any] = {"use_distributed_optimizer": True}
OVERLAPPED: dict[str, Any] = SHARDED | {"overlap_grad_reduce": True, "overlap_param_gather": True}
BUFFER_BYTES = 1 << 18
"""Room for three of the eight experts that a rank of two groups has in a layer, with half of the state of each."""
BF16: dict[str, Any] = {"bf16": True, "params_dtype": torch.bfloat16}
reordered_with = functools.partial(
    optimizers.trained_with,
    scenario=neutrality,
    ddp=OVERLAPPED,
    plan={"replicate": False},
    clip_grad=0.0,
    **BF16,
)
"""Reorders alone, which change no bit, with a kind of optimizer."""
COPIES = exports.SCENARIOS | copies.SCENARIOS | {"offloaded": sleep.offloaded}
ROUND_TRIPS: dict[str, dict[str, Any]] = {
    # Megatron 0.16 and 0.17 by themselves do not restore the sharded state of the embedding that multi-token prediction
    # has on the last stage, so the layouts with several stages train it without sharding.
    "pipeline": {
        "saved_with": checkpoints.TWO_STAGES,
        "loaded_with": checkpoints.TWO_STAGES,
        "num_experts": 6,
        "mtp_num_layers": 2,
    },
    "pipeline_of_chunks_sharded": {
        "saved_with": checkpoints.TWO_STAGES,
        "loaded_with": checkpoints.TWO_STAGES,
        "num_experts": 6,
        "num_chunks": 2,
        "sharded": True,
    },
    "ep4_to_ep2": {"saved_with": checkpoints.FOUR_RANKS, "loaded_with": checkpoints.TWO_GROUPS},
    "ep4_to_ep2_sharded_bf16": {
        "saved_with": checkpoints.FOUR_RANKS,
        "loaded_with": checkpoints.TWO_GROUPS,
        "sharded": True,
        "bf16": True,
        "mtp_num_layers": 2,
    },
    "grouped": {
        "saved_with": checkpoints.FOUR_RANKS,
        "loaded_with": checkpoints.TWO_GROUPS,
        "grouped": True,
    },
    **{
        kind: {
            "saved_with": checkpoints.FOUR_RANKS,
            "loaded_with": checkpoints.TWO_GROUPS,
            "sharded": True,
            "bf16": True,
            "kind": kind,
            "loads_plainly": kind != "remainders",
        }
        for kind in ("remainders", "half_offloaded_beside_fused")
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
            "sgd": functools.partial(neutrality, optimizer="sgd"),
            "sgd_symmetric": functools.partial(neutrality, optimizer="sgd", transport="symmetric"),
            "reorder_only": functools.partial(neutrality, plan={"replicate": False}, clip_grad=0.0),
            "reorder_only_bf16": functools.partial(neutrality, plan={"replicate": False}, clip_grad=0.0, **BF16),
            "no_gradient_return": functools.partial(mutated, mutation=no_gradient_return),
            "no_moments_moved": functools.partial(mutated, mutation=no_moments_moved),
            "fallbacks": fallbacks,
            "both_phases": both_phases,
            "both_phases_host_copy": functools.partial(both_phases, host_copy=True),
            "both_phases_symmetric_host_copy": functools.partial(both_phases, transport="symmetric", host_copy=True),
            "guard": attachments.guard,
            "without_ddp": attachments.without_ddp,
            "detachment": attachments.detachment,
            "refusals": refusals.refusals,
            "reorder_undone": faults.undone,
            "cannot_be_undone": faults.cannot_be_undone,
            "fp8": functools.partial(reordered_with, kind="fp8"),
            "offloaded_alone": functools.partial(
                optimizers.trained_with, kind="offloaded_alone", scenario=neutrality, optimizer="sgd"
            ),
        },
    ),
    "two_groups": Layout(
        cluster=EP2_EDP2,
        scenarios={
            # A layer of eight experts has several buckets.
            "sgd": functools.partial(
                neutrality, optimizer="sgd", ddp={"overlap_grad_reduce": True, "bucket_size": 6000}
            ),
            "sharded_bf16_reorder_only": functools.partial(
                neutrality, ddp=OVERLAPPED, plan={"replicate": False}, clip_grad=0.0, **BF16
            ),
            "sharded_stay": functools.partial(
                mutated, mutation=ungathered, ddp=OVERLAPPED, plan={"move": False}, in_flight=False
            ),
            "sharded_no_wait": functools.partial(
                mutated, mutation=no_wait_for_gathering, ddp=OVERLAPPED, plan={"move": False}, in_flight=False
            ),
            "sharded_no_moments_moved": functools.partial(mutated, mutation=no_moments_moved, ddp=SHARDED),
            "sharded_reorder_undone": functools.partial(
                faults.undone,
                ddp=OVERLAPPED,
                plan={"replicate": False},
                clip_grad=0.0,
                buffer_bytes=BUFFER_BYTES,
            ),
            **{kind: functools.partial(reordered_with, kind=kind) for kind in ("fp16", "remainders", "half_offloaded")},
            "no_scales_moved": functools.partial(
                reordered_with, kind="fp16", scenario=mutated, mutation=no_scales_moved
            ),
            "no_inner_parameters_moved": functools.partial(
                reordered_with, kind="half_offloaded", scenario=mutated, mutation=no_inner_parameters_moved
            ),
            "offloaded_reorder_undone": functools.partial(
                reordered_with, kind="half_offloaded", scenario=faults.undone, buffer_bytes=BUFFER_BYTES
            ),
        },
    ),
    "two_groups_for_long": Layout(
        cluster=EP2_EDP2, scenarios={"fifty_reorders": functools.partial(fifty_reorders, ddp=OVERLAPPED)}
    ),
    "gpt_ep4": Layout(cluster=EP4, scenarios=matrix.scenarios("gpt_ep4")),
    "layers_ep4": Layout(cluster=EP4, scenarios=layers.ONE_GROUP),
    "graphs_ep4": Layout(cluster=EP4, scenarios=graphs.SCENARIOS),
    "layers_ep2_edp2": Layout(cluster=EP2_EDP2, scenarios=layers.TWO_GROUPS),
    "layers_ep2_vpp": Layout(cluster=EP2, scenarios=layers.STAGES, num_stages=2, num_chunks=2),
    "gpt_replicas": Layout(cluster=EP4, scenarios=replicas.SCENARIOS | timeline.SCENARIOS | mutations.SCENARIOS),
    "checkpoints": Layout(
        cluster=EP4,
        scenarios={
            "refused": checkpoints.refused,
            "constant_structure": checkpoints.constant_structure,
            "not_remapped": checkpoints.not_remapped,
        },
    ),
    # One layout each: process groups of past arrangements keep threads, which cost more time than a new start.
    **{
        f"checkpoint_{name}": Layout(
            cluster=EP4,
            scenarios={name: functools.partial(optimizers.trained_with, scenario=checkpoints.round_trip, **options)},
        )
        for name, options in ROUND_TRIPS.items()
    },
    "copies_ep4": Layout(cluster=EP4, scenarios=COPIES),
    "sleep_ep4": Layout(cluster=EP4, scenarios={"slept": sleep.slept}),
    "copied_replicas": Layout(
        cluster=EP4,
        scenarios={
            "replicas": restored_replicas.replicas_of_restored,
            "replicas_host_copy": functools.partial(restored_replicas.replicas_of_restored, host_copy=True),
            "stale_replicas": functools.partial(restored_replicas.stale_replicas, host_copy=True),
        },
    ),
    "sleep_ep2_edp2": Layout(cluster=EP2_EDP2, scenarios={"slept": sleep.slept}),
    "sleep_deaf": Layout(cluster=EP2_EDP2, scenarios={"deaf": sleep.deaf}),
    "copies_ep2_edp2": Layout(
        cluster=EP2_EDP2,
        scenarios={
            name: functools.partial(each, ddp=OVERLAPPED, clip_grad=0.0, **BF16) for name, each in COPIES.items()
        },
    ),
    "slime_ep4": Layout(cluster=EP4, scenarios=slime.SCENARIOS),
    "slime_ep2_edp2": Layout(
        cluster=EP2_EDP2,
        scenarios={name: functools.partial(each, sharded=True) for name, each in slime.SCENARIOS.items()},
    ),
    # A layout each, because slime replaces functions of torch.distributed for the rest of the process.
    "slime_plugin_forced": Layout(
        cluster=EP2_EDP2,
        scenarios={
            "forced": functools.partial(slime_plugin.forced, num_steps=2, sharded=True, options=slime_plugin.SEPARATE),
            "refused": slime_plugin.refused,
        },
    ),
    "miles_plugin_forced": Layout(
        cluster=EP2_EDP2,
        scenarios={
            "forced": functools.partial(
                slime_plugin.forced,
                num_steps=2,
                sharded=True,
                options=slime_plugin.SEPARATE,
                actor=slime_plugin.MilesActor,
            )
        },
    ),
    "slime_plugin_colocated": Layout(
        cluster=EP4,
        scenarios={
            "forced": functools.partial(slime_plugin.forced, num_steps=1, sharded=False, options=slime_plugin.COLOCATED)
        },
    ),
    "slime_plugin_packed": Layout(cluster=EP4, scenarios={"packed": slime_plugin.packed}),
    **{
        f"{framework}_plugin_{name}": Layout(
            cluster=cluster,
            scenarios={"planned": functools.partial(slime_plugin.planned, actor=actor, **options)},
            **parallel,
        )
        for framework, actor in (("slime", slime_plugin.SlimeActor), ("miles", slime_plugin.MilesActor))
        for name, (cluster, options, parallel) in slime_plugin.PARALLEL.items()
    },
    "services": Layout(cluster=EP4, scenarios={"planner_outage": planner_outage.planner_outage}),
    "routed_otherwise": Layout(cluster=EP2, scenarios=otherwise.SCENARIOS, num_ranks=2),
    "hot_path": Layout(cluster=EP2, scenarios=hot_path.SCENARIOS, num_ranks=2),
    "one_rank": Layout(cluster=EP1, scenarios={"integration_page": integration_page.integration_page}, num_ranks=1),
    "gpt_ep2_edp2": Layout(cluster=EP2_EDP2, scenarios=matrix.scenarios("gpt_ep2_edp2") | reductions.SCENARIOS),
    "gpt_experts": Layout(
        cluster=EP2_EDP2, scenarios=matrix.EXPERTS_SCENARIOS | mutations.EXPERTS_SCENARIOS | host_waits.SCENARIOS
    ),
    "gpt_fp8": Layout(cluster=EP2_EDP2, scenarios=fp8.SCENARIOS),
    "gpt_dispatchers": Layout(cluster=EP4, scenarios=dispatchers.SCENARIOS),
    "gpt_tp2_ep2_edp2": Layout(cluster=EP2_EDP2, scenarios=matrix.TENSOR_SCENARIOS, tensor_parallel_size=2),
    "gpt_tp2_etp2_ep2": Layout(
        cluster=EP2, scenarios=cut_experts.SCENARIOS, tensor_parallel_size=2, expert_tensor_parallel_size=2
    ),
    "cp2_ep2_edp2": Layout(
        cluster=EP2_EDP2,
        scenarios={"sgd": functools.partial(neutrality, optimizer="sgd", context_parallel_size=2)},
        context_parallel_size=2,
    ),
    "gpt_ep2_pp2": Layout(cluster=EP2, scenarios=matrix.scenarios("gpt_ep2_pp2"), num_stages=2),
    "gpt_ep2_vpp": Layout(cluster=EP2, scenarios=matrix.scenarios("gpt_ep2_vpp"), num_stages=2, num_chunks=2),
    **{
        f"death_{scenario}": Layout(cluster=EP4, scenarios={scenario: each}, is_fatal=True)
        for scenario, each in deaths.SCENARIOS.items()
    },
    **{
        f"death_{scenario}": Layout(cluster=EP2, scenarios={scenario: each}, num_stages=2, is_fatal=True)
        for scenario, each in deaths.PIPELINE_SCENARIOS.items()
    },
}
on_cuda.check({name: layout.scenarios for name, layout in LAYOUTS.items()})
