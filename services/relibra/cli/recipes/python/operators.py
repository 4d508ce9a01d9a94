"""Applies operators and methods to plain values. Whatever could take long or much memory is unknown instead."""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from relibra.cli.recipes.python.values import MAX_SIZE, Unknown, is_known, is_small, text_of

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda one, other: one is other,
    ast.IsNot: lambda one, other: one is not other,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_METHODS = {
    str: "endswith format join lower lstrip removeprefix removesuffix replace rstrip split splitlines startswith strip "
    "title upper partition rpartition rsplit isdigit",
    list: "append extend insert copy count index",
    dict: "get items keys values update copy setdefault",
    set: "add union",
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        int,
        str,
        float,
        bool,
        len,
        min,
        max,
        abs,
        sum,
        any,
        all,
        sorted,
        list,
        dict,
        tuple,
        set,
        round,
        zip,
        enumerate,
    )
}


def combine(operation: ast.operator, left: Any, right: Any) -> Any:
    """Return `left operation right`."""
    if isinstance(left, str) and isinstance(operation, ast.Div):
        return f"{left.rstrip('/')}/{text_of(right).lstrip('/')}"
    if isinstance(operation, ast.Add) and (isinstance(left, str) or isinstance(right, str)):
        one, other = text_of(left), text_of(right)
        return one + other if len(one) + len(other) <= MAX_SIZE else Unknown("a long text")
    if isinstance(left, str) and isinstance(operation, ast.Mod) and re.search(r"%[^sd%]", left):
        return Unknown("a formatted text")
    if not is_known(left, right):
        return Unknown("a value that is not known")
    if isinstance(operation, ast.Mult):
        return left * right if _is_small(left, right) else Unknown("a large value")
    if isinstance(operation, ast.Pow):
        is_small = (
            isinstance(left, int | float) and isinstance(right, int | float) and abs(left) < 1e6 and abs(right) < 64
        )
        return left**right if is_small else Unknown("a large value")
    apply = _BINARY.get(type(operation))
    return _called(apply, left, right) if apply is not None else Unknown("an operation")


def compare(operation: ast.cmpop, left: Any, right: Any) -> Any:
    """Return the result of a comparison, or Unknown."""
    if not is_known(left, right) or not (is_small(left) and is_small(right)):
        return Unknown("a comparison")
    return _called(_COMPARED[type(operation)], left, right)


def call_method(value: Any, name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the result of a method of a plain value, or Unknown."""
    for kind, names in _METHODS.items():
        if isinstance(value, kind) and name in names.split():
            if kind is str and not is_known(*arguments, *keywords.values()):
                arguments = [each if is_known(each) else text_of(each) for each in arguments]
            if name == "join" and arguments and isinstance(arguments[0], list | tuple):
                arguments = [[text_of(each) for each in arguments[0]]]
            if name == "format" or not _fits(value, name, arguments):
                return Unknown("a formatted text")
            return _called(getattr(value, name), *arguments, **keywords)
    return Unknown(f"{name}()")


def call_function(name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    """Return the result of a function of Python, or Unknown."""
    if name == "range":
        found = _called(range, *arguments)
        return list(found) if isinstance(found, range) and len(found) <= MAX_SIZE else Unknown("range()")
    if name == "str" and arguments:
        return text_of(arguments[0])
    if name not in FUNCTIONS or not is_known(*arguments):
        return Unknown(f"{name}()")
    found = _called(FUNCTIONS[name], *arguments, **keywords)
    return list(found) if isinstance(found, zip | enumerate) else found


def _fits(value: Any, name: str, arguments: list[Any]) -> bool:
    """Return whether the result of a method stays small."""
    if name == "replace" and len(arguments) > 1:
        return (len(value) + 1) * (len(str(arguments[1])) + 1) <= MAX_SIZE
    if name == "join" and arguments and isinstance(arguments[0], list):
        return sum(len(each) + len(value) for each in arguments[0]) <= MAX_SIZE
    return True


def _is_small(left: Any, right: Any) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left) < 1e18 and abs(right) < 1e18
    times = left if isinstance(left, int) else right
    sized = right if isinstance(left, int) else left
    return isinstance(times, int) and hasattr(sized, "__len__") and times * len(sized) <= MAX_SIZE


def _called(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    try:
        found = function(*arguments, **keywords)
    except Exception as error:
        return Unknown(f"{type(error).__name__}: {error}")
    if isinstance(found, type({}.items()) | type({}.keys()) | type({}.values())):
        return list(found)
    return Unknown("a large value") if isinstance(found, str | list) and len(found) > MAX_SIZE else found
