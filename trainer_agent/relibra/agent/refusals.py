"""Configurations that the agent cannot execute, each with an alternative that it supports."""

from typing import Any, NamedTuple

from relibra.errors import Unsupported

TESTED_VERSIONS = ("0.16", "0.17", "0.18", "0.19")
"""Supported versions of megatron-core. The tests run on the oldest; the test layouts were run by hand on the others."""


class Refusal(NamedTuple):
    """A setting that the agent does not support, and an alternative."""

    what: str
    alternative: str

    @property
    def reason(self) -> str:
        """A sentence that names the setting."""
        return f"relibra's agent does not support {self.what}"

    @property
    def fix(self) -> str:
        """What to do instead."""
        return f"use {self.alternative}"

    @property
    def error(self) -> Unsupported:
        """The error to raise."""
        return Unsupported(f"{self.reason}; {self.fix}")


def check_version(version: str) -> None:
    """Check the version of megatron-core.

    The agent hooks into internals that megatron may change without notice. On an untested version, the only symptom of
    a change could be wrong gradients.

    Raises:
        Unsupported: the version was not tested.
    """
    if ".".join(version.split(".")[:2]) not in TESTED_VERSIONS:
        raise unsupported(
            f"megatron-core {version}, which was not tested",
            f"megatron-core {TESTED_VERSIONS[0]} to {TESTED_VERSIONS[-1]}",
        )


def check_config(config: Any, *, expert_tensor_parallel_size: int) -> None:
    """Check the TransformerConfig of a built MoE layer.

    Raises:
        Unsupported: the agent cannot execute it; the message names the setting and an alternative.
    """
    for refusal in config_refusals(config, expert_tensor_parallel_size=expert_tensor_parallel_size):
        raise refusal.error


def config_refusals(config: Any, *, expert_tensor_parallel_size: int) -> list[Refusal]:
    """Return the refusals for a TransformerConfig, or for any object with its fields."""
    # From 0.18 on, the scopes are called modules, and the old name is None.
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
            "tensor_parallel_num_weight_shards (gtp_weight_remat_size), which was not tested",
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
            # Command line arguments give a number of layers; megatron derives `cpu_offloading` from it.
            bool(config.cpu_offloading or getattr(config, "cpu_offloading_num_layers", 0)),
            "cpu_offloading=True (cpu_offloading_num_layers), which was not tested",
            "cpu_offloading=False and recompute_granularity",
        ),
        (
            bool(getattr(config, "fine_grained_activation_offloading", False)),
            "fine_grained_activation_offloading=True, which was not tested",
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
    return [Refusal(what, alternative) for refused, what, alternative in refusals if refused]


def _is_sharded(config: Any, size: str, num_shards: str, num_tensor_ranks: int) -> bool:
    """Return whether weights are in more parts than tensor parallelism makes (from 0.19 on).

    `num_shards` is the argument; megatron derives `size` from it when it builds the model.
    """
    return (getattr(config, size, None) or 1) > 1 or (getattr(config, num_shards, None) or 1) > num_tensor_ranks


def optimizer_refusals(config: Any) -> list[Refusal]:
    """Return the refusals for an OptimizerConfig, or for any object with its fields."""
    refusals = (
        (
            config.use_precision_aware_optimizer,
            "use_precision_aware_optimizer=True, which exposes only copies of its state",
            "use_precision_aware_optimizer=False",
        ),
        (
            config.optimizer_cpu_offload,
            "optimizer_cpu_offload=True, which keeps state where a reorder cannot move it",
            "optimizer_cpu_offload=False",
        ),
    )
    return [Refusal(what, alternative) for refused, what, alternative in refusals if refused]


def ddp_refusals(config: Any) -> list[Refusal]:
    """Return the refusals for a DistributedDataParallelConfig, or for any object with its fields."""
    refusals = [sharding("use_megatron_fsdp=True")] if config.use_megatron_fsdp else []
    if (config.num_distributed_optimizer_instances or 1) > 1:
        what = "num_distributed_optimizer_instances > 1, which keeps parts of the state in several copies"
        refusals.append(Refusal(what, "num_distributed_optimizer_instances=1"))
    return refusals


def shared_adapter(what: str) -> Refusal:
    """Return the refusal of LoRA adapters that several experts share, so that a moved expert would lose its adapter."""
    return Refusal(
        f"{what} (LoRA with share_expert_adapters=True, Megatron-Bridge's default, shares one adapter among the "
        "experts of a rank, so moving an expert would change the model)",
        "target_modules without linear_fc1 and linear_fc2 of experts, or one adapter per expert with "
        "share_expert_adapters=False and moe_grouped_gemm=False",
    )


def adapter_refusals(config: Any) -> list[Refusal]:
    """Return the refusals for LoRA settings, in any object with Megatron-Bridge's names; a missing one is None.

    Without grouped products every expert is wrapped on its own, so its adapter moves with it.
    """
    sizes = [config.lora_rank, config.rank, config.dim]
    is_off = any(size is not None for size in sizes) and not any(sizes)
    targets = config.target_modules or ()
    targets = targets.split(",") if isinstance(targets, str) else targets
    is_on_experts = bool(config.share_expert_adapters) or any(
        each == "all-linear" or ("linear_fc" in each and "shared_expert" not in each) for each in map(str, targets)
    )
    if is_off or not is_on_experts or config.moe_grouped_gemm is False:
        return []
    return [shared_adapter("adapters on grouped experts")]


def sharding(what: str) -> Refusal:
    """Return the refusal of a wrapper or option that shards parameters over data-parallel ranks."""
    return Refusal(f"{what}, which shards weights of experts", "megatron's DistributedDataParallel")


def unsupported(what: str, alternative: str) -> Unsupported:
    """Return the error of a refusal."""
    return Refusal(what, alternative).error


def replay_obstacle(config: Any, router: Any = None) -> Refusal | None:
    """Return why a router would ignore given routing, or None if it uses it.

    Args:
        config: a TransformerConfig.
        router: the built router, if there is one.
    """
    if getattr(router, "routing_replay", None) is not None:
        return Refusal(
            "a routing replay of the framework on its routers (`routing_replay`, as slime installs it), which decides "
            "before the routing given",
            "only one replay: unset ENABLE_ROUTING_REPLAY, or do not give routing to relibra's agent",
        )
    if config.moe_router_fusion:
        return Refusal("moe_router_fusion=True, which ignores routing given to the router", "moe_router_fusion=False")
    if config.moe_router_load_balancing_type == "sinkhorn":
        return Refusal("sinkhorn routing, which ignores routing given to the router", "another load balancing type")
    return None
