"""Methods that plug-ins override pass on every argument that they do not know, because newer versions add some."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import relibra.plugins

FILES = sorted(Path(relibra.plugins.__path__[0]).glob("*/*.py"))


def overrides(tree: ast.AST) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, list[ast.Call]]]:
    """Yield each method that calls the one it overrides, with these calls."""
    for method in ast.walk(tree):
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = [call for call in ast.walk(method) if isinstance(call, ast.Call)]
            own = [call for call in calls if ast.unparse(call.func) == f"super().{method.name}"]
            if own:
                yield method, own


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_override_passes_on_arguments_that_it_does_not_know(file: Path) -> None:
    for method, calls in overrides(ast.parse(file.read_text())):
        where = f"{method.name}, line {method.lineno}"
        assert None not in (method.args.vararg, method.args.kwarg), where
        for call in calls:
            assert any(isinstance(argument, ast.Starred) for argument in call.args), where
            assert any(keyword.arg is None for keyword in call.keywords), where


def test_the_files_have_overrides() -> None:
    assert sum(len([*overrides(ast.parse(file.read_text()))]) for file in FILES) >= 40
