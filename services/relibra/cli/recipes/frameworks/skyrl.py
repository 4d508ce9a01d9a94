"""SkyRL: overrides of `trainer.policy.megatron_config`, or of `megatron_config` for supervised training."""

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.passing import draft_of, lora, pass_sections
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import framework_data


def read_skyrl(launch: Launch) -> Draft:
    """Return the settings of a recipe of SkyRL."""
    config = launch.merged_config()
    is_rl = isinstance(config.get("trainer"), dict)
    trainer, policy = (section(config, (each,)) if is_rl else config for each in ("trainer", "trainer.policy"))
    megatron = "trainer.policy.megatron_config" if is_rl else "megatron_config"
    draft = draft_of("skyrl", at_path(policy, "model.path"), launch, has_provider=True)
    nested = (f"{megatron}.{each}" for each in ("transformer_config_kwargs", "optimizer_config_kwargs", "ddp_config"))
    pass_sections(config, draft, launch, megatron, *nested, own=framework_data("skyrl")["own"])
    if trainer.get("gradient_checkpointing") is False:
        draft.put("recompute_granularity", None, launch.line_of("gradient_checkpointing"))
    replay = draft.settings.get("moe_enable_routing_replay")
    if replay is not None and replay.value:
        draft.put("replay", "R3", launch.line_of("moe_enable_routing_replay"))
    targets = at_path(policy, "model.lora.target_modules", "all-linear")
    lora(
        draft,
        rank=at_path(policy, "model.lora.rank"),
        targets=framework_data("skyrl")["lora_targets"] if targets == "all-linear" else targets,
        where=launch.line_of("lora.rank", "trainer.policy.model.lora.rank"),
    )
    if trainer.get("strategy", "megatron") != "megatron":
        draft.warnings.append("trainer.strategy is not megatron; relibra balances Megatron only")
    return draft
