"""Finds the command line that a Python launcher starts a training with."""

import ast
import shlex
from pathlib import Path
from typing import Any

from relibra.cli.recipes.python.evaluate import RECORDED, Evaluation
from relibra.cli.recipes.python.models import model_words
from relibra.cli.recipes.python.values import Function, text_of
from relibra.cli.recipes.shell.unknown import apart
from relibra.errors import InvalidInput


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
