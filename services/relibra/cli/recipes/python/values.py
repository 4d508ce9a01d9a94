"""Values of a launcher: plain ones of Python, whose operations stay small, and what cannot be told."""

import ast
import operator
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from relibra.cli.recipes.shell.unknown import unknown

PLAIN = (str, int, float, bool, type(None), list, dict, tuple, set)
_MAX_PARTS = 10_000
_MAX_SIZE = 1_000_000
"""The largest text or list that an operation may make."""

Scope = ChainMap[str, Any]
"""Names and their values; names of an outer scope can be read."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that comes from elsewhere: another module, a program, the environment."""

    source: str


@dataclass(frozen=True, slots=True)
class Function:
    """A function or a method of the launcher."""

    node: ast.FunctionDef | ast.Lambda
    scope: Scope
    bound: Any = None
    is_property: bool = False


@dataclass(slots=True)
class Class:
    """A class of the launcher, with what it has from its bases."""

    attributes: dict[str, Any]
    fields: dict[str, tuple[ast.expr | None, Scope]]
    """Annotated attributes, which a dataclass takes as arguments, with their defaults and where those are evaluated."""


@dataclass(slots=True)
class Instance:
    """An object of a class of the launcher."""

    type: Class
    values: dict[str, Any] = field(default_factory=dict)


OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
METHODS = (
    "endswith join lower lstrip removeprefix removesuffix replace rstrip split startswith strip upper append extend "
    "insert get items keys values update copy"
)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (int, float, bool, len, min, max, sum, any, all, sorted, list, dict, tuple, set)
} | {
    "str": lambda value="": text_of(value),
    "range": lambda *bounds: list(range(*bounds)[: _MAX_SIZE + 1]),
    "enumerate": lambda *items: [list(each) for each in enumerate(*items)],
}


def apply(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Return the result of a function of Python on plain values, or Unknown if it fails, or would be large."""
    if not all(isinstance(each, PLAIN) for each in arguments):
        return Unknown("a value that is not known")
    name = getattr(function, "__name__", "")
    if name in ("mul", "replace", "join") and _product(function, arguments) > _MAX_SIZE:
        return Unknown("a large value")
    if name == "mod" and isinstance(arguments[0], str):
        return Unknown("a formatted text")
    try:
        found = function(*arguments, **keywords)
    except Exception as error:
        return Unknown(f"{type(error).__name__}: {error}")
    if isinstance(found, type({}.items()) | type({}.keys()) | type({}.values())):
        return list(found)
    return Unknown("a large value") if isinstance(found, str | list) and len(found) > _MAX_SIZE else found


def extend(owner: list[Any], added: Any) -> None:
    """Add the parts of a value to a list: one unknown part if they are not known, or if the list would be large."""
    parts = list(added) if isinstance(added, list | dict | tuple | set | str) else [added]
    owner.extend(parts if len(owner) + len(parts) <= _MAX_SIZE else [Unknown("a large value")])


def _product(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """Return a bound of the size of a product, or of a text that a method of a text makes."""
    owner = getattr(function, "__self__", None)
    found = 1
    for each in (*arguments, owner if isinstance(owner, str) else None):
        if isinstance(each, list):
            found *= 1 + sum(len(inner) if isinstance(inner, str) else 1 for inner in each)
        else:
            found *= 1 + (abs(int(each)) if isinstance(each, int | float) else len(each or ""))
    return found


def text_of(value: Any) -> str:
    """Return a value as in an f-string; an unknown one becomes a mark."""
    if isinstance(value, Unknown):
        return unknown(value.source)
    return str(value) if isinstance(value, PLAIN) and is_small(value) else unknown(type(value).__name__)


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


def is_true(value: Any) -> bool:
    """Return whether a condition holds. One that cannot be told does not."""
    return bool(value) if isinstance(value, PLAIN) else not isinstance(value, Unknown)


def literal(text: str) -> Any:
    """Return a text as the Python value that it spells, else as it is."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)
    return found if isinstance(found, PLAIN) else text
