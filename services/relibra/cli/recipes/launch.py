"""What a recipe file starts: the words of a command line, or a configuration."""

import functools
import re
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from relibra.cli.recipes.arguments import at_path, leaves, merge, nest, read_options, read_overrides
from relibra.cli.recipes.shipped import known_flags


@dataclass(frozen=True)
class Launch:
    """The content of a recipe, before a framework's meaning is given to it."""

    path: Path
    text: str
    words: tuple[str, ...] = ()
    """The command line that starts the training; empty for a configuration file."""
    config: dict[str, Any] = field(default_factory=dict)
    """The content of a configuration file with its defaults."""
    warnings: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """Return the options of the command line, after the program that takes them."""
        starts = [number for number, word in enumerate(self.words) if word.endswith(".py")]
        return read_options(self.words[starts[0] if starts else 0 :], known_flags())

    def all_options(self) -> dict[str, Any]:
        """Return the options, and what a configuration of any depth and overrides of any path set, by its name."""
        return leaves(self.merged_config) | self.options()

    @cached_property
    def merged_config(self) -> dict[str, Any]:
        """The configuration with the overrides of the command line."""
        return merge(self.config, nest(read_overrides(self.words)))

    def section(self, path: str) -> dict[str, Any]:
        """Return the mapping at a path of the merged configuration; an empty one if there is none."""
        section = at_path(self.merged_config, path)
        return section if isinstance(section, dict) else {}

    def line_of(self, *names: str) -> str:
        """Return the line of the file that sets an option, for people; if none does, that it comes from elsewhere.

        In YAML, `a.b` is the key b of the mapping a. In a launcher, the last line counts that has one of the names.
        """
        at_line = 0
        if self.config and not self.words:
            at_line = next((number for name in names if (number := yaml_lines(self.text).get(name))), 0)
            return f"line {at_line}" if at_line else f"default of {self.path.name}, or of a file that it names"
        for at, line in enumerate(self.text.splitlines(), 1):
            if not line.lstrip().startswith("#") and any(_sets(line, name) for name in names):
                at_line = at
        return f"line {at_line}" if at_line else f"default of {self.path.name}, or of a file that it reads"


@functools.cache
def yaml_lines(text: str) -> dict[str, int]:
    """Return the line of every key of a YAML mapping, by its path."""
    line_of_key: dict[str, int] = {}

    def walk(node: Any, above: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                path = f"{above}.{key.value}" if above else str(key.value)
                line_of_key[path] = key.start_mark.line + 1
                walk(value, path)

    with suppress(yaml.YAMLError, RecursionError):
        walk(yaml.compose(text), "")
    return line_of_key


def _sets(line: str, name: str) -> bool:
    return name in line and re.search(rf"(?<![^\W]){re.escape(name)}(?=$|[\s=:\\\"'])", line) is not None
