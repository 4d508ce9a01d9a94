"""NeMo-RL: YAML with `policy.megatron_cfg`, whose bases name all settings."""

from typing import Any

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.passing import family_of, lora, pass_on, put_family
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import family_origin, framework_data, origin

_OWN = frozenset(
    [
        "enabled",
        "model_overrides",
        "checkpoint",
        "activation_checkpointing",
        "recompute_granularity",
        "recompute_modules",
        "peft",
        "optimizer",
        "scheduler",
        "distributed_data_parallel_config",
        "fp8_cfg",
        "env_vars",
        "converter_type",
        "empty_unused_memory_level",
        "force_reconvert_from_hf",
        "freeze_moe_router",
        "freeze_config",
        "defer_fp32_logits",
        "train_iters",
        "use_gloo_process_groups",
        "use_fused_linear_logprobs",
        "fused_linear_logprobs_chunk_size",
        "quant_cfg",
        "track_moe_metrics",
        "moe_per_layer_logging",
        "clear_memory_caches_before_refit",
    ]
)
"""Keys that are read below, or do not reach the model's configuration."""


def read_nemo_rl(launch: Launch) -> Draft:
    """Return the settings of a recipe of NeMo-RL."""
    config = launch.merged_config()
    data = framework_data("nemo-rl")
    draft = Draft()
    policy = section(config, ("policy",))
    megatron = section(policy, ("megatron_cfg",))
    family = family_of(policy.get("model_name", ""), draft, launch)
    if family is not None:
        put_family(family, draft)
        draft.put("has_shared_experts", family.has_shared_experts, family_origin(family))
    draft.put_all(data["settings"], origin(data))
    pass_on({each: value for each, value in megatron.items() if each not in _OWN}, draft, launch, "policy.megatron_cfg")
    pass_on(section(megatron, ("optimizer",)), draft, launch, "policy.megatron_cfg.optimizer")
    ddp = "distributed_data_parallel_config"
    pass_on(section(megatron, (ddp,)), draft, launch, f"policy.megatron_cfg.{ddp}")
    _derived(megatron, policy, draft, launch)
    pass_on(section(megatron, ("model_overrides",)), draft, launch, "policy.megatron_cfg.model_overrides")
    if at_path(megatron, "peft.enabled"):
        peft = section(megatron, ("peft",))
        targets = peft.get("target_modules") or ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
        lora(draft, rank=peft.get("dim", 8), targets=targets, where=launch.line_of("policy.megatron_cfg.peft"))
    if not megatron.get("enabled"):
        draft.warnings.append("policy.megatron_cfg.enabled is not true; relibra balances Megatron only")
    return draft


def _derived(megatron: dict[str, Any], policy: dict[str, Any], draft: Draft, launch: Launch) -> None:
    """Set what NeMo-RL derives from settings of its own."""
    is_recomputed = megatron.get("activation_checkpointing")
    granularity = megatron.get("recompute_granularity", "full") if is_recomputed else None
    draft.put("recompute_granularity", granularity, launch.line_of("policy.megatron_cfg.activation_checkpointing"))
    if at_path(megatron, "fp8_cfg.enabled"):
        for name in ("fp8", "fp8_recipe", "fp8_param"):
            draft.put(name, at_path(megatron, f"fp8_cfg.{name}"), launch.line_of("policy.megatron_cfg.fp8_cfg"))
    if at_path(policy, "router_replay.enabled"):
        where = launch.line_of("policy.router_replay")
        draft.put("moe_enable_routing_replay", True, where)
        draft.put("replay", "R3", where)
