"""Values of a launcher that is being read: plain Python values, and what cannot be told."""

import ast
from dataclasses import dataclass, field
from typing import Any

from relibra.cli.recipes.shell.unknown import unknown

PLAIN = (str, int, float, bool, type(None), list, dict, tuple, set)
_MAX_PARTS = 10_000
MAX_SIZE = 1_000_000
"""The largest text or list that an operation may make."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that comes from elsewhere: another module, a program, the environment."""

    source: str


@dataclass(slots=True)
class Scope:
    """Names and their values; names of an outer scope can be read."""

    values: dict[str, Any] = field(default_factory=dict)
    outer: "Scope | None" = None

    def get(self, name: str) -> Any:
        """Return the value of a name, or Unknown."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return Unknown(name)


@dataclass(frozen=True, slots=True)
class Function:
    """A function or a method of the launcher."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    bound: Any = None
    is_property: bool = False


@dataclass(slots=True)
class Class:
    """A class of the launcher: its attributes, with those of its bases."""

    name: str
    attributes: dict[str, Any]
    fields: dict[str, ast.expr | None]
    """Annotated attributes, which a dataclass takes as arguments, with the expressions of their defaults."""
    scope: Scope


@dataclass(slots=True)
class Instance:
    """An object of a class of the launcher."""

    type: Class
    values: dict[str, Any] = field(default_factory=dict)


def text_of(value: Any) -> str:
    """Return a value as in an f-string; an unknown one becomes a mark."""
    if isinstance(value, Unknown):
        return unknown(value.source)
    if isinstance(value, Instance | Class | Function) or not is_small(value):
        return unknown(type(value).__name__)
    return str(value)


def is_small(value: Any) -> bool:
    """Return whether a value has few parts, also if a part is in it many times."""
    waiting, num_parts = [value], 0
    while waiting and num_parts <= _MAX_PARTS:
        each = waiting.pop()
        num_parts += 1
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set):
            waiting += each
    return num_parts <= _MAX_PARTS


def is_known(*values: Any) -> bool:
    """Return whether all values are plain."""
    return all(isinstance(each, PLAIN) for each in values)


def is_true(value: Any) -> bool:
    """Return whether a condition holds. One that cannot be told does not."""
    return bool(value) if isinstance(value, PLAIN) else not isinstance(value, Unknown)
