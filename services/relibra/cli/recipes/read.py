"""Reads a recipe file into effective settings, without running anything of it."""

from collections.abc import Container, Mapping
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path

from relibra.cli.recipes.frameworks.registry import READERS, Framework, Reader, guess_framework
from relibra.cli.recipes.launch import Launch
from relibra.cli.recipes.merged import read_yaml
from relibra.cli.recipes.python.launcher import model_arguments, read_launcher
from relibra.cli.recipes.recipe import Recipe
from relibra.cli.recipes.shell.evaluate import expand_script
from relibra.cli.recipes.shell.sources import find_source
from relibra.cli.recipes.shell.unknown import without_unknown
from relibra.cli.recipes.shipped import framework_data
from relibra.errors import InvalidInput

_MAX_BYTES = 1 << 20
_MAX_CHOICES = 4
"""The conditions of which a script is read in all ways, to find out whether they matter."""


def read_recipe(path: Path, framework: Framework | None, given: dict[str, str]) -> Recipe:
    """Return what a recipe would give to Megatron.

    Args:
        path: a bash or Python launcher, or YAML.
        framework: the framework that it belongs to; None to tell it from the file.
        given: variables that the launcher takes from its environment, or options of a Python launcher.

    Raises:
        InvalidInput: the file cannot be read, or its framework cannot be told.
    """
    text = _text(path)
    framework = framework or guess_framework(text)
    if framework is None:
        raise InvalidInput.of(
            "--framework", expected=f"one of {', '.join(Framework)}: {path.name} has no certain sign", got="none"
        )
    recipe, choices = _read(path, text, framework, given)
    lines = set(choices.values())
    if 0 < len(lines) <= _MAX_CHOICES:
        some = chain.from_iterable(combinations(lines, number) for number in range(1, len(lines) + 1))
        if all(_is_read_alike(recipe, choices, path, text, given, frozenset(each)) for each in some):
            recipe = replace(recipe, warnings=_without(recipe.warnings, choices))
    return recipe


def _is_read_alike(
    recipe: Recipe, choices: Mapping[str, int], path: Path, text: str, given: dict[str, str], otherwise: frozenset[int]
) -> bool:
    """Return whether nothing changes if conditions of some lines are read the other way round."""
    try:
        other, of_other = _read(path, text, Framework(recipe.framework), given, otherwise)
    except InvalidInput:
        return False
    if not set(of_other.values()) <= set(choices.values()):  # a further condition, which nobody has read both ways
        return False
    return replace(recipe, warnings=_without(recipe.warnings, choices)) == replace(
        other, warnings=_without(other.warnings, of_other)
    )


def _without(warnings: tuple[str, ...], choices: Container[str]) -> tuple[str, ...]:
    return tuple(each for each in warnings if each not in choices)


def _read(
    path: Path, text: str, framework: Framework, given: dict[str, str], otherwise: frozenset[int] = frozenset()
) -> tuple[Recipe, Mapping[str, int]]:
    reader = READERS[framework]
    launch = _launch(path, text, framework, reader, given, otherwise)
    draft = reader.read(launch)
    recipe = Recipe(
        framework=framework.value,
        megatron_core=framework_data(framework.value)["megatron_core"],
        model=draft.model,
        family=draft.family.name if draft.family is not None else "",
        settings=draft.settings,
        unknown=tuple(draft.unknown),
        warnings=(*launch.warnings, *draft.warnings),
    )
    return recipe, launch.choices


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise InvalidInput.of("--recipe", expected="a file", got=str(path))
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidInput.of("--recipe", expected=f"at most {_MAX_BYTES} bytes", got=path.stat().st_size)
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput.of("--recipe", expected="a text file", got=error) from error


def _launch(
    path: Path, text: str, framework: Framework, reader: Reader, given: dict[str, str], otherwise: frozenset[int]
) -> Launch:
    shipped = _shipped(framework)
    warnings: list[str] = []
    if path.suffix in (".yaml", ".yml"):
        return Launch(path, text, (), read_yaml(path, warnings, shipped), tuple(warnings))
    if path.suffix == ".py":
        words, stops = read_launcher(path, text, given)
        return Launch(path, text, words, {}, (*warnings, *stops))
    expansion = expand_script(path, text, given, lambda argv: model_arguments(argv, path), otherwise)
    warnings += expansion.doubts
    started = _training(expansion.commands, reader)
    if not started:
        raise InvalidInput.of(
            "--recipe",
            expected=f"a script that starts a training of {framework}",
            got="; ".join([f"{path.name}, which starts none", *expansion.doubts[-2:]]),
        )
    config = {}
    name = Launch(path, text, started).options().get("config")
    if isinstance(name, str) and (found := find_source(without_unknown(name), path.absolute().parent, path.absolute())):
        config = read_yaml(found, warnings, shipped)
    return Launch(path, text, started, config, tuple(warnings), expansion.choices)


def _training(commands: tuple[tuple[str, ...], ...], reader: Reader) -> tuple[str, ...]:
    """Return the command that starts the training, or no words if there is none."""
    scores = [sum(reader.command.match(word) is not None for word in each) for each in commands]
    if not any(scores):
        return ()
    best = max(range(len(scores)), key=lambda number: (scores[number], number))
    return commands[best]


def _shipped(framework: Framework) -> dict[str, dict[str, object]]:
    """Return the content of the framework's base configurations, by file name."""
    data = framework_data(framework.value)
    base = data.get("shipped")
    if base is None:
        return {}
    switched_on = {
        **base,
        "policy": {**base["policy"], "megatron_cfg": {**base["policy"]["megatron_cfg"], "enabled": True}},
    }
    return dict.fromkeys(data["bases"], base) | dict.fromkeys(data["megatron_bases"], switched_on)
