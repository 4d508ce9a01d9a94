"""A recipe: the effective settings of a training, each with its origin."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """A value and its origin: a line of the file, or a default."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The effective settings of a training, under the names of Megatron's configuration."""

    framework: str
    megatron_core: str = ""
    """The version of megatron-core that the framework pins, for people; empty if it pins none."""
    model: str = ""
    """The model's name or path, if the recipe says it."""
    family: str = ""
    """The model family that contributed defaults; empty if none is known."""
    settings: Mapping[str, Given] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    """Options that are not known here, so nothing can be said about them."""
    warnings: tuple[str, ...] = ()
    """Parts of the recipe that could not be read."""
    missing_lines: tuple[str, ...] = ()
    """The lines that load relibra and that the recipe lacks."""
    is_resumable: bool = False
    """Whether the recipe keeps experts in place, or its checkpoints load wherever they are."""

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of a setting."""
        setting = self.settings.get(name)
        return default if setting is None else setting.value
