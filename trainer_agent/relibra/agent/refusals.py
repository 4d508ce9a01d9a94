"""Configurations that the agent cannot execute, each with an alternative that it supports.

`relibra.agent.settings` holds the settings of Megatron's configurations. This module applies them, and holds the rest.
"""

from typing import Any

from relibra.agent.setting import Part, Refusal
from relibra.agent.settings import refusals
from relibra.errors import Unsupported

OLDEST_VERSION = (0, 16)
"""Older versions lack `MoELayer.preprocess`, which the agent replaces."""


def check_version(version: str) -> None:
    """Check a version of megatron-core of which only the number is known, as in a recipe.

    A newer number refuses nothing and promises nothing: `attach` and `relibra doctor` compare the megatron-core that is
    installed with the table `relibra.agent.needs`.

    Raises:
        Unsupported: the version is known to lack what the agent hooks into.
    """
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if len(numbers) == 2 and tuple(numbers) < OLDEST_VERSION:
        raise refuse(f"megatron-core {version}, which lacks MoELayer.preprocess", "megatron-core 0.16 or newer")


def check_config(config: Any, *, expert_tensor_parallel_size: int) -> None:
    """Check the TransformerConfig of a built MoE layer.

    Raises:
        Unsupported: the agent cannot execute it; the message names the setting and an alternative.
    """
    for refusal in config_refusals(config, expert_tensor_parallel_size=expert_tensor_parallel_size):
        raise refusal.error


def config_refusals(config: Any, *, expert_tensor_parallel_size: int) -> list[Refusal]:
    """Return the refusals for a TransformerConfig, or for any object with its fields.

    Args:
        config: the configuration.
        expert_tensor_parallel_size: the size of the groups that were built, which the configuration may not say.
    """
    return refusals(Part.MODEL, _Built(config, expert_tensor_parallel_size))


class _Built:
    """A TransformerConfig with the size of expert tensor parallelism that was built."""

    def __init__(self, config: Any, expert_tensor_parallel_size: int) -> None:
        self._config = config
        self.expert_tensor_parallel_size = expert_tensor_parallel_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def optimizer_refusals(config: Any) -> list[Refusal]:
    """Return the refusals for an OptimizerConfig, or for any object with its fields."""
    return refusals(Part.OPTIMIZER, config)


def ddp_refusals(config: Any) -> list[Refusal]:
    """Return the refusals for a DistributedDataParallelConfig, or for any object with its fields."""
    return refusals(Part.DDP, config)


def saving_refusals(config: Any) -> list[Refusal]:
    """Return the refusals for arguments of checkpoints, which come with a save after a reorder and not in `attach`."""
    return refusals(Part.SAVING, config)


def adapter_without_sum(what: str) -> Refusal:
    """Return the refusal of LoRA matrices that do not serve all experts of a layer alike."""
    return Refusal(
        f"{what}, which not all experts of a layer share (LoRA of Megatron-Bridge up to 0.5.0 trains other matrices on "
        "each rank, which stay behind when an expert moves; 0.5.1 sums the gradients of such matrices; with "
        "share_expert_adapters=False or experts_shared_outer_loras=True, and in ROLL and ms-swift, matrices of single "
        "experts lie beside the grouped product, where they do not go with their expert)",
        "share_expert_adapters=True with Megatron-Bridge 0.6 or newer, or up to 0.5.0 with reorder=never and without "
        "fp8, moe_grouped_gemm=False, or target_modules without linear_fc1 and linear_fc2 of experts",
        "all experts of a layer share one adapter, their products run one after the other, or they are not adapted",
        "share_expert_adapters",
    )


def adapter_that_drifts(what: str) -> Refusal:
    """Return the refusal of LoRA matrices whose gradients nobody sums over the ranks of an EP group."""
    return Refusal(
        f"{what} with gradient_accumulation_fusion=True, whose gradients this Megatron-Bridge does not sum over the "
        "ranks of an EP group, so that the adapters of the ranks drift apart, also without relibra",
        "gradient_accumulation_fusion=False, or a Megatron-Bridge whose finalize_model_grads_with_expert_adapter_sync "
        "sums them: set it as finalize_model_grads_func of the model's config, and call "
        "enable_expert_parallel_grad_sync_in_finalize(model) before attach",
        "gradients of adapters are added to main_grad in kernels of their own; frozen weights have none",
        "gradient_accumulation_fusion",
    )


_ADAPTERS = "LoRA matrices of grouped experts"


def adapter_refusals(config: Any) -> list[Refusal]:
    """Return the refusals for LoRA settings, in any object with Megatron-Bridge's names; a missing one is None.

    Without grouped products every expert is wrapped on its own, so its adapter moves with it.
    """
    is_own = config.share_expert_adapters is False or bool(config.experts_shared_outer_loras)
    return [adapter_without_sum(_ADAPTERS)] if is_own and _adapts_grouped_experts(config) else []


def adapter_advice(config: Any) -> list[Refusal]:
    """Return what settings do not tell of LoRA that is not refused: whether Megatron-Bridge keeps adapters equal."""
    if adapter_refusals(config) or not _adapts_grouped_experts(config):
        return []
    return [
        Refusal(
            f"{_ADAPTERS}, which attach takes if Megatron-Bridge trains one adapter for all experts of a layer, and "
            "where no expert moves also one for those of a rank",
            "Megatron-Bridge 0.6 or newer; with gradient_accumulation_fusion=True, one with "
            "finalize_model_grads_with_expert_adapter_sync",
            "none: in older ones the adapters of the ranks differ, and attach refuses them where experts move",
            "share_expert_adapters",
        )
    ]


def _adapts_grouped_experts(config: Any) -> bool:
    sizes = [config.lora_rank, config.rank, config.dim]
    is_off = any(size is not None for size in sizes) and not any(sizes)
    targets = config.target_modules or ()
    targets = targets.split(",") if isinstance(targets, str) else targets
    is_on_experts = bool(config.share_expert_adapters) or any(
        target == "all-linear" or ("linear_fc" in target and "shared_expert" not in target)
        for target in map(str, targets)
    )
    return is_on_experts and not is_off and config.moe_grouped_gemm is not False


def sharding(what: str) -> Refusal:
    """Return the refusal of a wrapper or option that shards parameters over data-parallel ranks."""
    return Refusal(f"{what}, which shards weights of experts", "megatron's DistributedDataParallel")


def refuse(what: str, alternative: str) -> Unsupported:
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
    if router is not None and not hasattr(router, "router_replay"):
        return Refusal(
            "routing given to a router without `router_replay`, which some forks of megatron-core lack",
            "the framework's own replay of routing, or plans from history",
        )
    if config.moe_router_fusion:
        return Refusal("moe_router_fusion=True, which ignores routing given to the router", "moe_router_fusion=False")
    if config.moe_router_load_balancing_type == "sinkhorn":
        return Refusal("sinkhorn routing, which ignores routing given to the router", "another load balancing type")
    return None
