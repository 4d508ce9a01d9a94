"""The signatures of frameworks' functions that a plug-in relies on, read from sources without importing them.

`python -m harness.signatures DIR` writes them to `tests/plugins/signatures.json`, from checkouts that
`harness.frameworks` made in DIR.
"""

import ast
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.frameworks import CHECKOUTS
from relibra.plugins.nemo_rl import points as nemo_rl
from relibra.plugins.points import Points
from relibra.plugins.slime.framework import MILES, SLIME

SAVED = Path(__file__).parents[1] / "plugins" / "signatures.json"


@dataclass(frozen=True)
class Framework:
    """What a plug-in relies on in a framework."""

    version: str
    package: str
    points: Mapping[str, Points]
    """By module of the package."""


FRAMEWORKS = {each.name: Framework(each.version, each.package, each.points) for each in (SLIME, MILES)} | {
    "NeMo-RL": Framework(nemo_rl.VERSION, nemo_rl.PACKAGE, nemo_rl.POINTS)
}
"""By name of the checkout."""
Signatures = dict[str, dict[str, list[str] | None]]
"""By module and path of an attribute: its parameters, None if it comes from outside of the checkout."""


def read(checkout: Path, framework: Framework) -> Signatures:
    """Return the signatures of the attributes that a framework's checkout has."""
    package = checkout.joinpath(*framework.package.split("."))
    found: Signatures = {}
    for module, points in framework.points.items():
        found[module] = {}
        for path in points:
            file = package.joinpath(*module.split(".")).with_suffix(".py")
            definition = _find(file, path.split("."), checkout)
            if definition is not None:
                found[module][path] = _parameters(definition)
    return found


def stand_in(module: str, attributes: dict[str, list[str] | None]) -> Any:
    """Return an object with the attributes of a module, whose functions have the saved signatures."""
    root = SimpleNamespace(__name__=module)
    for path, parameters in attributes.items():
        *parents, name = path.split(".")
        owner = root
        for each in parents:
            vars(owner).setdefault(each, SimpleNamespace())
            owner = getattr(owner, each)
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(each, kind) for each in parameters or ()])
        function: Any = lambda *_, **__: None  # noqa: E731  (each needs a signature of its own)
        function.__signature__ = signature
        setattr(owner, name, function)
    return root


def _find(file: Path, path: Sequence[str], checkout: Path) -> ast.AST | None:
    """Return the definition of an attribute, or the import of one from outside of the checkout."""
    body: Any = ast.parse(file.read_text()).body
    for depth, name in enumerate(path):
        definition = next((each for each in body if name in _names(each)), None)
        if isinstance(definition, ast.ImportFrom):
            source = _source(file, definition, checkout)
            return definition if source is None else _find(source, path[depth:], checkout)
        if definition is None:
            return None
        body = getattr(definition, "body", [])
    return definition


def _names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ImportFrom):
        return [each.asname or each.name for each in statement.names]
    if isinstance(statement, ast.AnnAssign):
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    return [statement.name] if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []


def _source(file: Path, statement: ast.ImportFrom, checkout: Path) -> Path | None:
    folder = checkout if not statement.level else file.parents[statement.level - 1]
    source = folder.joinpath(*(statement.module or "").split(".")).with_suffix(".py")
    return source if source.exists() else None


def _parameters(definition: ast.AST) -> list[str] | None:
    if not isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    return [each.arg for each in (*definition.args.args, *definition.args.kwonlyargs)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    saved = {
        name: {"commit": CHECKOUTS[name][1], "modules": read(Path(sys.argv[1], name), framework)}
        for name, framework in FRAMEWORKS.items()
    }
    SAVED.write_text(json.dumps(saved, indent=1) + "\n")
