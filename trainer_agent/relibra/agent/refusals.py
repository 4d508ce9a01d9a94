"""Configurations the agent cannot execute, each with the supported alternative."""

from typing import Any

from relibra.errors import Unsupported


def check_config(config: Any, *, expert_tensor_parallel_size: int) -> None:
    """Check the TransformerConfig of a built MoE layer.

    Raises:
        Unsupported: names what is refused, and what to use instead.
    """
    scopes = {str(getattr(scope, "name", scope)) for scope in config.cuda_graph_scope or ("full layer",)}
    refusals = (
        (
            bool(config.moe_router_fusion and config.moe_enable_routing_replay),
            "moe_router_fusion=True, which ignores routing replay",
            "moe_router_fusion=False",
        ),
        (expert_tensor_parallel_size > 1, "expert tensor parallelism", "expert_tensor_parallel_size=1"),
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
        (bool(config.moe_shared_expert_overlap), "moe_shared_expert_overlap=True", "moe_shared_expert_overlap=False"),
        (bool(config.moe_apply_probs_on_input), "moe_apply_probs_on_input=True", "moe_apply_probs_on_input=False"),
        (
            config.moe_expert_capacity_factor is not None,
            "dropping tokens (moe_expert_capacity_factor)",
            "moe_expert_capacity_factor=None",
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
    for refused, what, alternative in refusals:
        if refused:
            raise unsupported(what, alternative)


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
