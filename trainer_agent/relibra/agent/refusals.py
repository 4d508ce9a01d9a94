"""Configurations the agent cannot execute, each with the supported alternative."""

from typing import Any

from relibra.errors import Unsupported

TESTED_VERSIONS = ("0.16", "0.17", "0.18", "0.19")
"""Of megatron-core. The suite runs on the oldest; the others were tried with its layouts by hand."""


def check_version(version: str) -> None:
    """Check the version of megatron-core.

    The agent hooks into parts that megatron may change without a word; what it would do then shows in gradients only.

    Raises:
        Unsupported: it is not one that was tested.
    """
    if ".".join(version.split(".")[:2]) not in TESTED_VERSIONS:
        raise unsupported(
            f"megatron-core {version}, with which it was not tested",
            f"megatron-core {TESTED_VERSIONS[0]} to {TESTED_VERSIONS[-1]}",
        )


def check_config(config: Any, *, expert_tensor_parallel_size: int) -> None:
    """Check the TransformerConfig of a built MoE layer.

    Raises:
        Unsupported: names what is refused, and what to use instead.
    """
    for refusal in config_refusals(config, expert_tensor_parallel_size=expert_tensor_parallel_size):
        raise refusal


def config_refusals(config: Any, *, expert_tensor_parallel_size: int) -> list[Unsupported]:
    """Return everything that is refused in a TransformerConfig, or in what has its fields."""
    # From 0.18 on the scopes are called modules, and the old name is None.
    graphed = getattr(config, "cuda_graph_modules", None) or config.cuda_graph_scope or ("full layer",)
    scopes = {str(getattr(scope, "name", scope)) for scope in graphed}
    dispatcher = config.moe_token_dispatcher_type
    refusals = (
        (dispatcher != "alltoall", f"moe_token_dispatcher_type={dispatcher!r}", "'alltoall'"),
        (
            bool(config.moe_router_fusion and config.moe_enable_routing_replay),
            "moe_router_fusion=True, which ignores routing replay",
            "moe_router_fusion=False",
        ),
        (expert_tensor_parallel_size > 1, "expert tensor parallelism", "expert_tensor_parallel_size=1"),
        (
            _is_sharded(
                config,
                "expert_gtp_weight_remat_size",
                "expert_tensor_parallel_num_weight_shards",
                expert_tensor_parallel_size,
            ),
            "expert_tensor_parallel_num_weight_shards (expert_gtp_weight_remat_size), which shards weights of experts",
            "expert_tensor_parallel_num_weight_shards=None",
        ),
        (
            _is_sharded(
                config,
                "gtp_weight_remat_size",
                "tensor_parallel_num_weight_shards",
                config.tensor_model_parallel_size or 1,
            ),
            "tensor_parallel_num_weight_shards (gtp_weight_remat_size), with which it was not tested",
            "tensor_parallel_num_weight_shards=None",
        ),
        (
            config.cuda_graph_impl != "none" and not scopes <= {"attn", "mlp", "mamba"},
            f"a CUDA graph over MoE layers (cuda_graph_scope {', '.join(sorted(scopes))})",
            "cuda_graph_scope='attn'",
        ),
        (
            bool(config.overlap_moe_expert_parallel_comm),
            "overlap_moe_expert_parallel_comm=True",
            "overlap_moe_expert_parallel_comm=False",
        ),
        (bool(config.delay_wgrad_compute), "delay_wgrad_compute=True", "delay_wgrad_compute=False"),
        (
            bool(getattr(config, "overlap_dispatch_backward_with_experts_wgrad", False)),  # from 0.18 on
            "overlap_dispatch_backward_with_experts_wgrad=True, whose gradients come too late for replicas",
            "overlap_dispatch_backward_with_experts_wgrad=False",
        ),
        (
            # Arguments say how many layers, from which megatron derives that there are any.
            bool(config.cpu_offloading or getattr(config, "cpu_offloading_num_layers", 0)),
            "cpu_offloading=True (cpu_offloading_num_layers), with which it was not tested",
            "cpu_offloading=False and recompute_granularity",
        ),
        (
            bool(getattr(config, "fine_grained_activation_offloading", False)),
            "fine_grained_activation_offloading=True, with which it was not tested",
            "fine_grained_activation_offloading=False and recompute_granularity",
        ),
        (
            bool(getattr(config, "moe_paged_stash", False)),  # from 0.18 on
            "moe_paged_stash=True",
            "moe_paged_stash=False",
        ),
        (bool(config.moe_shared_expert_overlap), "moe_shared_expert_overlap=True", "moe_shared_expert_overlap=False"),
        (bool(config.moe_apply_probs_on_input), "moe_apply_probs_on_input=True", "moe_apply_probs_on_input=False"),
        (
            config.moe_expert_capacity_factor is not None,
            "dropping tokens (moe_expert_capacity_factor)",
            "moe_expert_capacity_factor=None",
        ),
        (
            getattr(config, "moe_expert_rank_capacity_factor", None) is not None,  # from 0.18 on
            "dropping tokens (moe_expert_rank_capacity_factor)",
            "moe_expert_rank_capacity_factor=None",
        ),
        (
            bool(config.moe_router_padding_for_quantization or config.fp8 or config.fp4),
            "fp8 and fp4 experts",
            "bf16 or fp32 experts",
        ),
        (
            bool(config.mtp_num_layers),
            "multi-token prediction, whose layers reuse the numbers of decoder layers",
            "mtp_num_layers=None",
        ),
    )
    return [unsupported(what, alternative) for refused, what, alternative in refusals if refused]


def _is_sharded(config: Any, size: str, num_shards: str, num_tensor_ranks: int) -> bool:
    """Whether weights are in more parts than tensor parallelism makes, from 0.19 on: `size` is derived when built."""
    return (getattr(config, size, None) or 1) > 1 or (getattr(config, num_shards, None) or 1) > num_tensor_ranks


def optimizer_refusals(config: Any) -> list[Unsupported]:
    """Return everything that is refused in an OptimizerConfig, or in what has its fields."""
    refusals = (
        (
            config.use_precision_aware_optimizer,
            "use_precision_aware_optimizer=True, which shows copies of its state only",
            "use_precision_aware_optimizer=False",
        ),
        (
            config.optimizer_cpu_offload,
            "optimizer_cpu_offload=True, which keeps state where a reorder cannot move it",
            "optimizer_cpu_offload=False",
        ),
    )
    return [unsupported(what, alternative) for refused, what, alternative in refusals if refused]


def ddp_refusals(config: Any) -> list[Unsupported]:
    """Return everything that is refused in a DistributedDataParallelConfig, or in what has its fields."""
    refusals = [sharding("use_megatron_fsdp=True")] if config.use_megatron_fsdp else []
    if (config.num_distributed_optimizer_instances or 1) > 1:
        what = "num_distributed_optimizer_instances > 1, which keeps parts of the state in several copies"
        refusals.append(unsupported(what, "num_distributed_optimizer_instances=1"))
    return refusals


def sharding(what: str) -> Unsupported:
    """Build the refusal of what shards a model's parameters over data-parallel ranks."""
    return unsupported(f"{what}, which shards weights of experts", "megatron's DistributedDataParallel")


def unsupported(what: str, alternative: str) -> Unsupported:
    """Build the message of a refusal in its one form."""
    return Unsupported(f"relibra's agent does not support {what}; use {alternative}")


def replay_obstacle(config: Any) -> str | None:
    """Return why a router of this TransformerConfig would ignore routing given to it, and None where it would not."""
    if config.moe_router_fusion:
        return "moe_router_fusion=True, which ignores routing given to the router; use moe_router_fusion=False"
    if config.moe_router_load_balancing_type == "sinkhorn":
        return "sinkhorn routing, which ignores routing given to the router; use another load balancing type"
    return None
