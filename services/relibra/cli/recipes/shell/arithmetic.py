"""Evaluates bash arithmetic: sums, products, comparisons, and assignments of one variable.

Python's own parser reads the expressions, because these operators bind in the same order in both languages. An
operator that binds otherwise, such as `&` or `? :`, makes the value unknown.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from relibra.cli.recipes.shell.unknown import shown
from relibra.errors import InvalidInput

_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)\s*|([-+*/%]?)=(?!=)(.+))", re.S)
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: (abs(left) // abs(right)) * (1 if (left < 0) == (right < 0) else -1),
    ast.Mod: lambda left, right: abs(left) % abs(right) * (1 if left >= 0 else -1),
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class NotANumber(InvalidInput):
    """An expression whose value cannot be told."""


def evaluate(expression: str, get: Callable[[str], str | None], put: Callable[[str, str], None]) -> int:
    """Return the value of an expression; an empty one is 0.

    Args:
        expression: the text between the brackets, with `$name` already expanded.
        get: returns the value of a variable, or None.
        put: assigns a variable.

    Raises:
        NotANumber: the expression is no arithmetic that is read here, or divides by zero.
    """
    try:
        if (assigned := _ASSIGNED.fullmatch(expression)) is None:
            return _parsed(expression, get)
        name, step, sign, right = assigned.groups()
        before = 0 if step is None and not sign else _parsed(name, get)
        after = _parsed(f"{name} {step[0]} 1" if step else f"{name} {sign} ({right})" if sign else right, get)
        put(name, str(after))
        return before if step else after
    except (SyntaxError, ValueError, ArithmeticError, KeyError, MemoryError) as error:
        raise NotANumber(f"expected arithmetic, got {shown(expression)!r}") from error


def _parsed(expression: str, get: Callable[[str], str | None]) -> int:
    if "--" in expression:
        raise ValueError("-- is a sign in Python")
    text = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and ").replace("||", " or ")).strip()
    return int(_value(ast.parse(f"({text or 0})", mode="eval").body, get))


def _value(node: ast.expr, get: Callable[[str], str | None]) -> int:
    match node:
        case ast.Constant(value=int(found)):
            return found
        case ast.Name(id=name):
            text = (get(name) or "0").strip()
            return int(text, 0 if text[:2].lower() == "0x" else 10)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, get)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name() | ast.Constant() as operand):
            return not _value(operand, get)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(each, get) for each in values)
        case ast.BoolOp(values=values):
            return any(_value(each, get) for each in values)
        case ast.BinOp(left=left, op=sign, right=right) | ast.Compare(left=left, ops=[sign], comparators=[right]):
            found = _OPERATORS[type(sign)](_value(left, get), _value(right, get))
            if abs(found) >> 64 == 0:
                return int(found)
    raise ValueError(ast.unparse(node)[:80])
