"""How a test runs a module of the harness as a process of its own."""

import os
import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `python -m module arguments` with the interpreter of the caller."""
    return [sys.executable, "-m", module, *arguments]


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of the caller, where `harness` can be imported, with `variables` set."""
    path = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | variables
