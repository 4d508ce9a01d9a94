"""Reads a recipe file into effective settings, in a process with bounded time and memory."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

from relibra.cli.recipes.bounded import call_bounded
from relibra.cli.recipes.frameworks.draft import Draft
from relibra.cli.recipes.frameworks.registry import READERS, Framework, Reader, guess_framework
from relibra.cli.recipes.launch import Launch
from relibra.cli.recipes.merged import read_yaml
from relibra.cli.recipes.recipe import Recipe
from relibra.cli.recipes.shell import Run, find_source, run_script
from relibra.cli.recipes.shipped import framework_data
from relibra.cli.recipes.unknown import is_printed_by, mark_unknown, show_unknown, without_unknown
from relibra.errors import InvalidInput


def read_recipe(path: Path, framework: Framework | None, variables: dict[str, str]) -> Recipe:
    """Return what a recipe would give to Megatron.

    Args:
        path: a bash launcher, which is run without its programs; YAML; or arguments as .txt.
        framework: the framework that it belongs to; None to tell it from the file.
        variables: the environment of the launcher.

    Raises:
        InvalidInput: the file cannot be read within the bounds, or its framework cannot be told.
    """
    return call_bounded(read_here, path.absolute(), framework, variables)


def read_here(path: Path, framework: Framework | None, variables: dict[str, str]) -> Recipe:
    """Return what `read_recipe` does, without its bounds."""
    text = _text(path)
    framework = framework or (Framework.MEGATRON if path.suffix == ".txt" else guess_framework(text))
    if framework is None:
        raise InvalidInput.of(
            "--framework", expected=f"one of {', '.join(Framework)}: {path.name} has no certain sign", got="none"
        )
    if path.suffix in (".yaml", ".yml"):
        warnings: list[str] = []
        config = read_yaml(path, warnings, _read_base_configurations(framework))
        return _recipe(framework, Launch(path, text, (), config, tuple(warnings)))
    if path.suffix == ".txt":
        return _recipe(framework, Launch(path, text, _words(text)))
    if path.suffix == ".py":
        raise InvalidInput.of(
            "--recipe",
            expected="a bash launcher, YAML, or arguments as .txt",
            got=f"{path.name}, a Python program, which is not run here; let it print its command line, and pass that "
            "with --recipe as .txt",
        )
    recipe = _recipe(framework, _read_launch(path, text, framework, variables, printed=""))
    # In the second run programs print something else and variables are empty: what depends on them differs.
    try:
        other = _recipe(framework, _read_launch(path, text, framework, variables, printed="1"))
    except InvalidInput:
        return recipe
    doubts = [
        f"{setting.origin}: the value of {name} may also be {other.value(name)}: it depends on the machine"
        for name, setting in recipe.settings.items()
        if setting.value != other.value(name)
    ]
    return replace(recipe, warnings=(*recipe.warnings, *doubts))


def _recipe(framework: Framework, launch: Launch) -> Recipe:
    draft = Draft(framework.value, launch)
    READERS[framework].read(draft)
    return draft.recipe()


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a command line, with marks for the variables in it."""
    marked = re.sub(r"\$\{?(\w+)\}?", lambda match: mark_unknown(match[1]), text.replace("\\\n", " "))
    try:
        return tuple(shlex.split(marked, comments=True))
    except ValueError as error:
        raise InvalidInput.of("--recipe", expected="arguments as on a command line", got=error) from error


def _read_launch(path: Path, text: str, framework: Framework, variables: dict[str, str], *, printed: str) -> Launch:
    """Return what a launcher starts if programs print `printed`, which is a mark if it is empty."""
    reader = READERS[framework]
    run = Run((), ())
    words: tuple[str, ...] = ()
    for status in (1, 0):  # some launchers start the training only if a program before it succeeds
        run = run_script(path, variables, printed=printed, status=status)
        if words := _training(run.commands, reader):
            break
    else:
        raise InvalidInput.of(
            "--recipe",
            expected=f"a script that starts a training of {framework} although every program fails",
            got="; ".join([f"{path.name}, which starts none with the variables of --set", *run.doubts[-2:]]),
        )
    warnings = [*run.doubts]
    printed_words = dict.fromkeys(
        word
        for word in words
        if is_printed_by("python", word) and "relibra" not in word  # which prints a path
    )
    warnings += [f"{path.name}: the options that {show_unknown(word)} prints are not known" for word in printed_words]
    config = {}
    name = Launch(path, text, words).options().get("config")
    if isinstance(name, str) and (source := find_source(without_unknown(name), path.parent, path)):
        config = read_yaml(source, warnings, _read_base_configurations(framework))
    return Launch(path, text, words, config, tuple(warnings))


def _text(path: Path) -> str:
    if not path.is_file():
        raise InvalidInput.of("--recipe", expected="a file", got=str(path))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput.of("--recipe", expected="a text file", got=error) from error


def _training(commands: tuple[tuple[str, ...], ...], reader: Reader) -> tuple[str, ...]:
    """Return the command that starts the training, or no words if there is none."""
    scores = [
        sum(reader.command.match(word) is not None for word in words) if _is_program(words) else 0 for words in commands
    ]
    if not any(scores):
        return ()
    best = max(range(len(scores)), key=lambda number: (scores[number], number))
    return commands[best]


def _is_program(words: tuple[str, ...]) -> bool:
    """Return whether a command starts a training program, or is the rest of one that lacks a backslash."""
    is_named = any(word.endswith(".py") or word in ("-m", "megatron", "swift") for word in words)
    return is_named or words[0].startswith("--")


def _read_base_configurations(framework: Framework) -> dict[str, dict[str, object]]:
    """Return the content of the framework's base configurations, by file name."""
    data = framework_data(framework.value)
    base = data.get("shipped")
    if base is None:  # what they say are the framework's defaults
        return {name: {} for name in data.get("bases", ())}
    switched_on = {
        **base,
        "policy": {**base["policy"], "megatron_cfg": {**base["policy"]["megatron_cfg"], "enabled": True}},
    }
    return dict.fromkeys(data["bases"], base) | dict.fromkeys(data["megatron_bases"], switched_on)
