"""The defaults of frameworks and models that relibra ships, as data with its source."""

import functools
import re
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from relibra.agent.settings import SETTINGS

WRAPPER_OPTIONS = (
    "lora_rank",
    "rank",
    "dim",
    "target_modules",
    "share_expert_adapters",
    "experts_shared_outer_loras",
    "use_torch_fsdp2",
)
"""Options that the agent's table judges, and that no configuration of megatron-core has: of LoRA and of FSDP."""


class Family(NamedTuple):
    """A model family, and the settings that Megatron-Bridge's provider gives it."""

    name: str
    settings: dict[str, Any]
    has_shared_experts: bool
    mtp_num_layers: int
    """The layers for multi-token prediction in the published checkpoint."""


@functools.cache
def framework_data(name: str) -> dict[str, Any]:
    """Return the data of a framework: its defaults under Megatron's names, and where they were read."""
    return _load(f"{name}.yaml")


def origin(data: dict[str, Any]) -> str:
    """Return the origin of a framework's defaults, for people."""
    repository, _, _ = data["source"].partition(" ")
    return f"default of {repository} at {data['commit']}"


@functools.cache
def known_options() -> frozenset[str]:
    """Return the names that the configurations of megatron-core have, and those of the agent's table."""
    return frozenset(_load("megatron_options.yaml")["values"]) | known_flags() | _of_table()


@functools.cache
def known_flags() -> frozenset[str]:
    """Return the names among `known_options` that are true or false."""
    return frozenset(_load("megatron_options.yaml")["flags"])


def is_neutral(name: str) -> bool:
    """Return whether an option does not change how MoE layers or their optimizer run. The agent's table comes first."""
    return name not in _of_table() and _neutral().fullmatch(name) is not None


@functools.cache
def _neutral() -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in _load("neutral_options.yaml")["patterns"]))


@functools.cache
def _of_table() -> frozenset[str]:
    return frozenset(setting.name for setting in SETTINGS)


def find_family(model: str) -> Family | None:
    """Return the family of a model, by its name or path, or None if none is known."""
    data = _load("families.yaml")
    name = re.sub(r"[_.\s]", "-", model.lower())
    for family in data["families"]:
        if re.search(family["pattern"], name):
            settings = data["common"] | family["settings"]
            return Family(family["name"], settings, family["shared_experts"], family.get("mtp", 0))
    return None


def family_origin(family: Family) -> str:
    """Return the origin of a family's settings, for people."""
    return f"provider of {family.name} in Megatron-Bridge at {_load('families.yaml')['commit']}"


@functools.cache
def _load(name: str) -> dict[str, Any]:
    text = files("relibra.cli.recipes").joinpath("data", name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded
