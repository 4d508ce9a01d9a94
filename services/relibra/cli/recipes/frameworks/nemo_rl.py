"""NeMo-RL: YAML with `policy.megatron_cfg`, whose bases name all settings."""

from typing import Any

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.passing import draft_of, lora, pass_sections
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import framework_data

_SECTION = "policy.megatron_cfg"


def read_nemo_rl(launch: Launch) -> Draft:
    """Return the settings of a recipe of NeMo-RL."""
    config = launch.merged_config()
    policy = section(config, ("policy",))
    megatron = section(policy, ("megatron_cfg",))
    draft = draft_of("nemo-rl", policy.get("model_name"), launch, has_provider=True)
    pass_sections(config, draft, launch, _SECTION, own=framework_data("nemo-rl")["own"])
    pass_sections(config, draft, launch, f"{_SECTION}.optimizer", f"{_SECTION}.distributed_data_parallel_config")
    _derived(megatron, policy, draft, launch)
    pass_sections(config, draft, launch, f"{_SECTION}.model_overrides")
    if at_path(megatron, "peft.enabled"):
        peft = section(megatron, ("peft",))
        targets = peft.get("target_modules") or ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
        lora(draft, rank=peft.get("dim", 8), targets=targets, where=launch.line_of("policy.megatron_cfg.peft"))
    if policy.get("quant_cfg"):
        draft.warnings.append(
            f"{launch.line_of('policy.quant_cfg')}: quant_cfg gives the experts of a rank quantisers of ModelOpt, "
            "which do not move with an expert; this was not tested"
        )
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
