"""The arguments of a model, which miles keeps in a file of its own: `scripts/models/<model>.py` with `model_args()`."""

from pathlib import Path

from relibra.cli.recipes.python.evaluate import Evaluation
from relibra.cli.recipes.python.values import Function, text_of
from relibra.cli.recipes.shell.sources import find_source

_SIBLING = "load_sibling_model_args"
_MAX_SIBLINGS = 5


def model_words(model: str, path: Path) -> tuple[str, ...]:
    """Return the arguments of a model, or nothing if its file is not below a folder above the recipe."""
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
