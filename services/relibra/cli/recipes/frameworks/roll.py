"""ROLL: YAML with `actor_train.strategy_args.strategy_config`."""

from relibra.cli.recipes.arguments import at_path
from relibra.cli.recipes.frameworks.passing import draft_of, lora, pass_sections
from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import framework_data

_SECTION = "actor_train.strategy_args.strategy_config"


def read_roll(launch: Launch) -> Draft:
    """Return the settings of a recipe of ROLL."""
    config = launch.merged_config()
    trained = section(config, ("actor_train",))
    model = at_path(trained, "model_args.model_name_or_path") or config.get("pretrain")
    draft = draft_of("roll", model, launch, has_provider=False)
    pass_sections(config, draft, launch, _SECTION, f"{_SECTION}.additional_configs", own=framework_data("roll")["own"])
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
