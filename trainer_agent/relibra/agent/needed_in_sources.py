"""Whether the sources of a megatron-core have what the agent needs, without importing it or torch.

It reads definitions, imports and assignments to `self`, so it sees neither what a decorator changes nor what a
framework replaces at run time. `attach` sees both.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from relibra.agent.needs import NEEDS, Need, Use, mismatch

_Definition = ast.FunctionDef | ast.ClassDef
_Found = tuple[Path, ast.stmt]
"""A file, and a definition or assignment in it."""


def missing_in(root: Path, needs: Iterable[Need] = NEEDS) -> list[str]:
    """Return what is missing, in words.

    Args:
        root: the folder that holds `megatron/core`.
        needs: what to look for.
    """
    return [f"{need}{differs}" for need in needs if (differs := _Sources(root).differs(need)) is not None]


class _Sources:
    def __init__(self, root: Path) -> None:
        self._root = root

    def differs(self, need: Need) -> str | None:
        """Return how the sources differ from a need, or None."""
        owner, _, attribute = need.name.partition(".")
        definition_of_owner = self._find(need.module, owner)
        if definition_of_owner is None:
            return ""
        if attribute:
            classes = list(self._with_bases(*definition_of_owner))
            if need.use is Use.HELD:
                is_set = any(attribute in _find_assigned(definition) for _, definition in classes)
                return None if is_set else ""
            methods = (_member(definition, attribute) for _, definition in classes)
            definition: ast.stmt | None = next((member for member in methods if member is not None), None)
        else:
            definition = definition_of_owner[1]
            if isinstance(definition, ast.ClassDef) and need.use is Use.CALLED:
                definition = _member(definition, "__init__")
        if need.use is Use.READ:
            return None if definition is not None else ""
        if not isinstance(definition, ast.FunctionDef):
            return ""
        other = mismatch(need, _parameters(definition))
        return None if other is None else f": it {other}"

    def _find(self, module: str, name: str) -> _Found | None:
        """Return where a module or package defines a name, following imports."""
        file = self._file(module)
        if file is None:
            return None
        for statement in _statements(_parse(file)):
            if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name:
                return file, statement
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        found = self._find(_absolute(statement, module, file), alias.name)
                        if found is not None:
                            return found
        return None

    def _with_bases(self, file: Path, definition: ast.stmt) -> Iterator[tuple[Path, ast.ClassDef]]:
        if not isinstance(definition, ast.ClassDef):
            return
        yield file, definition
        for base in definition.bases:
            name = ast.unparse(base).rpartition(".")[2]
            found = self._find(self._module(file), name)
            if found is not None and found[1] is not definition:
                yield from self._with_bases(*found)

    def _file(self, module: str) -> Path | None:
        path = self._root.joinpath(*module.split("."))
        return next(
            (candidate for candidate in (path.with_suffix(".py"), path / "__init__.py") if candidate.is_file()), None
        )

    def _module(self, file: Path) -> str:
        parts = file.relative_to(self._root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, and those in its `if` and `try` blocks."""
    waiting = list(module.body)
    while waiting:
        statement = waiting.pop(0)
        yield statement
        if isinstance(statement, ast.If):
            waiting = [*statement.body, *statement.orelse, *waiting]
        elif isinstance(statement, ast.Try):
            handled = (inner for handler in statement.handlers for inner in handler.body)
            waiting = [*statement.body, *handled, *statement.orelse, *waiting]


def _absolute(statement: ast.ImportFrom, module: str, file: Path) -> str:
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - statement.level + (file.name == "__init__.py")]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _member(definition: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


@cache
def _find_assigned(definition: ast.ClassDef) -> frozenset[str]:
    """Return the names that a class defines, or that its methods assign to `self`."""
    names: set[str] = set()
    for statement in definition.body:
        if isinstance(statement, ast.FunctionDef):
            names.add(statement.name)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
        elif isinstance(statement, ast.Assign):
            names |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    stored = (
        node for node in ast.walk(definition) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    names |= {
        attribute.attr for attribute in stored if isinstance(attribute.value, ast.Name) and attribute.value.id == "self"
    }
    return frozenset(names)


def _parameters(function: ast.FunctionDef) -> dict[str, bool]:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    num_required = len(positional) - len(arguments.defaults)
    is_required = {argument.arg: i < num_required for i, argument in enumerate(positional)}
    if arguments.vararg is not None:
        is_required[f"*{arguments.vararg.arg}"] = False
    is_required |= {
        argument.arg: default is None
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }
    if arguments.kwarg is not None:
        is_required[f"**{arguments.kwarg.arg}"] = False
    is_required.pop("self", None)
    return is_required
