"""Evaluates bash arithmetic: sums, products, comparisons, and assignments of one variable.

Python's own parser reads the expressions, because these operators bind in the same order in both languages. An
operator that binds otherwise, such as `&` or `? :`, makes the value unknown.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

from relibra.cli.recipes.shell.unknown import shown, unknown, without_unknown
from relibra.errors import InvalidInput

_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:(\+\+|--)\s*|([-+*/%]?)=(?!=)(.+))", re.S)
_STEPPED = re.compile(r"\A\s*([-+])\1\s*([A-Za-z_]\w*)\s*\Z")
_CHANGED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\+\+|--|(?:<<|>>|[-+*/%&|^])?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)")
"""The variables that an expression changes, or might change."""
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
        get: returns the value of a variable, or None if it is not known. One that is only counted up then starts at 0.
        put: assigns a variable.

    Raises:
        NotANumber: the expression is no arithmetic that is read here, has a variable that is not known, or divides by
            zero. The variables that it assigns are then unknown.
    """
    try:
        if (assigned := _ASSIGNED.fullmatch(_STEPPED.sub(r"\2 \1= 1", expression))) is None:
            return _parsed(expression, get)
        name, step, sign, right = assigned.groups()
        if not step and not sign:
            before, after = 0, _parsed(right, get)
        else:
            before = _number(get(name) or "0")
            after = _parsed(f"{before} {step[0]} 1" if step else f"{before} {sign} ({right})", get)
        put(name, str(after))
        return before if step else after
    except (SyntaxError, ValueError, ArithmeticError, KeyError, MemoryError) as error:
        for found in _CHANGED.finditer(without_unknown(expression)):
            put(found[1] or found[2], unknown(shown(expression)))
        raise NotANumber(f"expected arithmetic, got {shown(expression)!r}") from error


def _parsed(expression: str, get: Callable[[str], str | None]) -> int:
    if "--" in expression:
        raise ValueError("-- is a sign in Python")
    text = re.sub(r"!(?!=)", " not ", expression.replace("&&", " and ").replace("||", " or ")).strip()
    text = re.sub(r"\b0(?=\d)", "0o", text)
    return int(_value(ast.parse(f"({text or 0})", mode="eval").body, get))


def _number(text: str) -> int:
    digits = (text := text.strip()).lstrip("+-")
    is_octal = digits[:1] == "0" and digits[1:].isdecimal()
    return int(text, 8 if is_octal else 0 if digits[:2].lower() == "0x" else 10)


def _value(node: ast.expr, get: Callable[[str], str | None]) -> int:
    match node:
        case ast.Constant(value=int(found)):
            return found
        case ast.Name(id=name):
            if (text := get(name)) is None:
                raise ValueError(f"{name} is not known")
            return _number(text or "0")
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
