"""Passes settings on: names and values of a framework's section, as Megatron names them."""

from collections.abc import Container, Mapping
from typing import Any

from relibra.cli.recipes.launch import Launch, section
from relibra.cli.recipes.recipe import Draft
from relibra.cli.recipes.shipped import (
    Family,
    family_origin,
    find_family,
    framework_data,
    is_neutral,
    known_options,
    origin,
)
from relibra.cli.recipes.unknown import is_known, shown

RENAMED = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "num_experts": "num_moe_experts",
    "moe_router_padding_for_fp8": "moe_router_padding_for_quantization",
    "use_custom_fsdp": "use_megatron_fsdp",
    "virtual_pipeline_parallel_size": "virtual_pipeline_model_parallel_size",
}
"""Arguments that have another name in Megatron's configurations."""


def pass_on(values: Mapping[str, Any], draft: Draft, launch: Launch, section: str = "") -> None:
    """Take values under Megatron's names, and list those that Megatron's configurations do not have.

    Args:
        values: the values.
        draft: gets the values.
        launch: the recipe.
        section: the path of the values in the recipe's configuration; empty on a command line.
    """
    for given, value in values.items():
        name = RENAMED.get(given, given)
        where = _line(launch, given, section)
        if given == "moe_enable_deepep":
            if value:
                draft.put("moe_flex_dispatcher_backend", "deepep", where)
        elif isinstance(value, str) and not is_known(value):
            if not is_neutral(name):
                draft.warnings.append(f"{where}: the value of {given} is {shown(value)}, which the file does not tell")
                draft.settings.pop(name, None)
        elif name in known_options():
            draft.put(name, value, where)
        elif not is_neutral(name):
            draft.unknown.append(f"{given} ({where})")


def _line(launch: Launch, name: str, section: str) -> str:
    if not section:
        return launch.line_of(name, f"--{name.replace('_', '-')}")
    if launch.config and not launch.words:
        return launch.line_of(f"{section}.{name}")
    where = launch.line_of(f"{section}.{name}")
    return where if where.startswith("line") else launch.line_of(name)


def pass_sections(config: dict[str, Any], draft: Draft, launch: Launch, *paths: str, own: Container[str] = ()) -> None:
    """Take the values of sections of a configuration, but not those of the framework's own keys."""
    for path in paths:
        values = section(config, (path,))
        pass_on({name: value for name, value in values.items() if name not in own}, draft, launch, path)


def draft_of(framework: str, model: Any, launch: Launch, *, has_provider: bool) -> Draft:
    """Return a draft with the defaults of a model's family and of a framework.

    Args:
        framework: the framework.
        model: the name or path of the model.
        launch: the recipe, whose name may tell the family.
        has_provider: whether the provider of Megatron-Bridge builds the model.
    """
    draft, data = Draft(), framework_data(framework)
    if (family := family_of(model, draft, launch)) is not None:
        if has_provider:
            draft.put_all(family.settings, family_origin(family))
        draft.put("has_shared_experts", family.has_shared_experts, family_origin(family))
    draft.put_all(data["settings"], origin(data))
    return draft


def family_of(model: Any, draft: Draft, launch: Launch) -> Family | None:
    """Return the family of a model, by its name, else by the name of the recipe; say so if neither tells.

    The draft gets the names of both.
    """
    path = shown(str(model or ""))
    draft.model, draft.family = path.rstrip("/").rpartition("/")[2], find_family(path)
    if draft.family is None:
        draft.family = find_family("/".join(launch.path.absolute().parts[-4:]))
        said = (
            "is of no family known here, so defaults of its provider are not known"
            if draft.family is None
            else f"is taken for a {draft.family.name}, from the name of the recipe"
        )
        draft.warnings.append(f"the model {path or '(not named)'} {said}")
    return draft.family


def lora(draft: Draft, *, rank: Any, targets: Any, where: str, share: bool = True) -> None:
    """Set the names of Megatron-Bridge's LoRA. A rank of 0 or None means that there is no LoRA."""
    if isinstance(rank, str) and rank.isdigit():
        rank = int(rank)
    if not rank:
        return
    words = targets.replace(",", " ").split() if isinstance(targets, str) else [str(each) for each in targets or ()]
    draft.put("lora_rank", rank, where)
    draft.put("target_modules", words, where)
    # Bridge wraps grouped experts in one adapter; adapters on attention alone leave experts as they are.
    is_on_experts = any(_is_of_experts(each) for each in words)
    draft.put("share_expert_adapters", share and is_on_experts, where)


_OF_EXPERTS = ("fc1", "fc2", "gate_proj", "up_proj", "down_proj", "gate_up_proj", "experts")


def _is_of_experts(target: str) -> bool:
    """Return whether a target of LoRA names products of experts."""
    return target in ("all-linear", "all", "*") or (
        "shared" not in target and any(target.endswith(each) for each in _OF_EXPERTS)
    )
