"""Finds the command line that a Python launcher starts a training with."""

import ast
import shlex
from pathlib import Path
from typing import Any

from relibra.cli.recipes.python.evaluate import RECORDED, Evaluation
from relibra.cli.recipes.python.values import Function, text_of
from relibra.cli.recipes.shell.sources import find_source
from relibra.cli.recipes.shell.unknown import apart
from relibra.errors import InvalidInput

_SIBLING = "load_sibling_model_args"
_MAX_SIBLINGS = 5


def read_launcher(path: Path, text: str, given: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of the command line that starts the training, and the lines at which the launcher would stop.

    Args:
        path: where the launcher is.
        text: its content.
        given: options of the launcher, and variables of its environment.

    Raises:
        InvalidInput: the text is no Python, or starts no training that can be read.
    """
    evaluation = Evaluation(path, given)
    scope = evaluation.module(text)
    for name in _entries(text):
        function = scope.get(name)
        is_started = any(called == "execute_train" for called, _, _ in evaluation.calls)
        if not is_started and isinstance(function, Function):
            evaluation.start(function, scope)
    found = [
        words for name, arguments, keywords in evaluation.calls if (words := _words(name, arguments, keywords, path))
    ]
    best = max(found, key=lambda words: sum(word.startswith("--") for word in words), default=())
    if not any(word.startswith("--") for word in best):
        raise InvalidInput.of(
            "--recipe",
            expected="a launcher that starts a training",
            got=f"{path.name}, which starts none that can be read",
        )
    return best, tuple(dict.fromkeys(evaluation.stops))


def _entries(text: str) -> list[str]:
    """Return the functions from which a training is started and that no other function calls, the last first."""
    functions = {each.name: each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)}
    called = {
        name: {ast.unparse(call.func).rpartition(".")[2] for call in ast.walk(node) if isinstance(call, ast.Call)}
        for name, node in functions.items()
    }
    starts = {name for name, calls in called.items() if calls & set(RECORDED)}
    while more := {name for name, calls in called.items() if calls & starts} - starts:
        starts |= more
    trains = {name for name, calls in called.items() if "execute_train" in calls} or starts
    while more := {name for name, calls in called.items() if calls & trains} - trains:
        trains |= more
    top = [name for name in functions if name in trains and not any(name in calls for calls in called.values())]
    return list(reversed(top)) or list(reversed([name for name in functions if name in trains]))


def _words(name: str, arguments: list[Any], keywords: dict[str, Any], path: Path) -> tuple[str, ...]:
    if name != "execute_train":
        return _split(text_of(arguments[0])) if arguments and isinstance(arguments[0], str) else ()
    given = keywords.get("train_args", arguments[0] if arguments else "")
    return (*model_words(text_of(keywords.get("megatron_model_type", "")), path), *_split(text_of(given)))


def _split(text: str) -> tuple[str, ...]:
    text = apart(text)
    try:
        return tuple(shlex.split(text.replace("\\\n", " ")))
    except ValueError:
        return tuple(text.split())


def model_words(model: str, path: Path) -> tuple[str, ...]:
    """Return the arguments of a model, which miles keeps in `scripts/models/<model>.py`, if that file is there."""
    for _ in range(_MAX_SIBLINGS):
        script = find_source(f"scripts/models/{model}.py", path.absolute().parent, path.absolute()) if model else None
        if script is None:
            return ()
        evaluation = Evaluation(script, {}, recorded=(_SIBLING,))
        function = evaluation.module(script.read_text(encoding="utf-8")).get("model_args")
        found = evaluation.enter(function, [], {}) if isinstance(function, Function) else None
        if isinstance(found, str):
            return tuple(found.split())
        # The model differs from another one only in what the arguments say that are read elsewhere.
        named = [arguments[1] for _, arguments, _ in evaluation.calls if len(arguments) > 1]
        model = text_of(named[0]) if named else ""
    return ()


def model_arguments(argv: tuple[str, ...], path: Path) -> str | None:
    """Return what miles' program for model arguments prints, or None for another program."""
    if len(argv) > 2 and argv[1].endswith("model_args_utils.py"):
        return " ".join(model_words(argv[2], path)) or None
    return None
