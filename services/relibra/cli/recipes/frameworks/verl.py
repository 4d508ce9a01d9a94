"""verl: Hydra overrides of `actor_rollout_ref.actor.megatron`, or of `engine` for supervised training."""

from typing import Any

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.passing import draft_of, lora, pass_on, pass_sections
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft

_OWN = (
    "tensor_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "sequence_parallel",
    "use_distributed_optimizer",
    "use_megatron_fsdp",
)
_OPTIMIZER = ("optimizer", "use_precision_aware_optimizer")
_REPLAYING = ("R2", "R3", "record", "replay")


def read_verl(launch: Launch) -> Draft:
    """Return the settings of a recipe of verl."""
    config = launch.merged_config()
    is_rl = "actor_rollout_ref" in config
    megatron = "actor_rollout_ref.actor.megatron" if is_rl else "engine"
    optim = "actor_rollout_ref.actor.optim" if is_rl else "optim"
    engine, optimizer = section(config, (megatron,)), section(config, (optim,))
    model = section(config, ("actor_rollout_ref.model", "model"))
    draft = draft_of("verl", model.get("path"), launch, has_provider=True)
    if draft.family is not None and at_path(model, "mtp.enable"):
        draft.put("mtp_num_layers", draft.family.mtp_num_layers, launch.line_of("mtp.enable", "enable"))
    pass_on({each: engine[each] for each in _OWN if each in engine}, draft, launch, megatron)
    pass_sections(config, draft, launch, *(f"{megatron}.override_{each}_config" for each in ("transformer", "ddp")))
    pass_on({each: optimizer[each] for each in _OPTIMIZER if each in optimizer}, draft, launch, optim)
    if engine.get("dtype") in ("float16", "fp16"):
        draft.put("use_precision_aware_optimizer", True, f"verl sets it with dtype=float16, {launch.line_of('dtype')}")
    pass_sections(config, draft, launch, f"{optim}.override_optimizer_config")
    if at_path(engine, "router_replay.mode") in _REPLAYING:
        where = launch.line_of("router_replay.mode", "mode")
        draft.put("moe_enable_routing_replay", True, where)
        draft.put("replay", at_path(engine, "router_replay.mode"), where)
    lora(
        draft,
        rank=at_path(model, "lora.rank"),
        targets=at_path(model, "lora.target_modules", "all-linear"),
        where=launch.line_of("lora.rank", "rank"),
    )
    if not _is_megatron(config, launch):
        draft.warnings.append(
            "the recipe does not choose Megatron (model_engine=megatron); relibra balances Megatron only"
        )
    return draft


def _is_megatron(config: dict[str, Any], launch: Launch) -> bool:
    chosen = (
        config.get("model_engine"),
        at_path(config, "actor_rollout_ref.actor.strategy"),
        at_path(config, "engine.strategy"),
        config.get("engine"),
        config.get("strategy"),
    )
    return (
        "megatron" in chosen
        or any("megatron" in word for word in launch.words if "config-name" in word or "engine" in word)
        or ("config_name" in launch.options() and "megatron" in str(launch.options()["config_name"]))
    )
