"""ROLL: YAML with `actor_train.strategy_args.strategy_config`."""

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.passing import family_of, lora, pass_on
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import family_origin, framework_data, origin

_SECTION = "actor_train.strategy_args.strategy_config"
_OWN = ("additional_configs", "moe_layer_recompute")


def read_roll(launch: Launch) -> Draft:
    """Return the settings of a recipe of ROLL."""
    config = launch.merged_config()
    data = framework_data("roll")
    draft = Draft()
    draft.put_all(data["settings"], origin(data))
    trained = section(config, ("actor_train",))
    model = at_path(trained, "model_args.model_name_or_path") or config.get("pretrain") or ""
    family = family_of(model, draft, launch)
    if family is not None:
        draft.put("has_shared_experts", family.has_shared_experts, family_origin(family))
    strategy = section(config, (_SECTION,))
    pass_on({each: value for each, value in strategy.items() if each not in _OWN}, draft, launch, _SECTION)
    pass_on(section(strategy, ("additional_configs",)), draft, launch, f"{_SECTION}.additional_configs")
    lora(
        draft,
        rank=at_path(trained, "model_args.lora_rank"),
        targets=at_path(trained, "model_args.lora_target", "all-linear"),
        where=launch.line_of("actor_train.model_args.lora_rank", "lora_rank"),
    )
    if at_path(trained, "strategy_args.strategy_name") != "megatron_train":
        draft.warnings.append(
            "actor_train.strategy_args.strategy_name is not megatron_train; relibra balances Megatron only"
        )
    return draft
