"""SkyRL: overrides of `trainer.policy.megatron_config`."""

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.passing import family_of, lora, pass_on, put_family
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import family_origin, framework_data, origin

_SECTION = "trainer.policy.megatron_config"
_NESTED = ("optimizer_config_kwargs", "transformer_config_kwargs", "ddp_config", "lora_config", "hf_export_config")
_OWN = ("empty_cuda_cache", "model_config_kwargs", "torch_profiler_config")


def read_skyrl(launch: Launch) -> Draft:
    """Return the settings of a recipe of SkyRL."""
    config = launch.merged_config()
    data = framework_data("skyrl")
    draft = Draft()
    policy = section(config, ("trainer.policy",))
    megatron = section(policy, ("megatron_config",))
    family = family_of(at_path(policy, "model.path", ""), draft, launch)
    if family is not None:
        put_family(family, draft)
        draft.put("has_shared_experts", family.has_shared_experts, family_origin(family))
    draft.put_all(data["settings"], origin(data))
    pass_on({each: value for each, value in megatron.items() if each not in (*_NESTED, *_OWN)}, draft, launch, _SECTION)
    for each in ("transformer_config_kwargs", "optimizer_config_kwargs", "ddp_config"):
        pass_on(section(megatron, (each,)), draft, launch, f"{_SECTION}.{each}")
    if at_path(config, "trainer.gradient_checkpointing") is False:
        draft.put("recompute_granularity", None, launch.line_of("gradient_checkpointing"))
    if draft.value("moe_enable_routing_replay"):
        draft.put("replay", "R3", launch.line_of("moe_enable_routing_replay"))
    targets = at_path(policy, "model.lora.target_modules", "all-linear")
    lora(
        draft,
        rank=at_path(policy, "model.lora.rank"),
        targets=data["lora_targets"] if targets == "all-linear" else targets,
        where=launch.line_of("lora.rank", "trainer.policy.model.lora.rank"),
    )
    if at_path(config, "trainer.strategy", "megatron") != "megatron":
        draft.warnings.append("trainer.strategy is not megatron; relibra balances Megatron only")
    return draft
