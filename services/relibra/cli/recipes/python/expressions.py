"""Values of expressions in a launcher."""

import ast
import re
from typing import TYPE_CHECKING, Any

from relibra.cli.recipes.python.operators import combine, compare
from relibra.cli.recipes.python.values import (
    PLAIN,
    Class,
    Function,
    Instance,
    Scope,
    Unknown,
    is_true,
    text_of,
)

_FORMAT = re.compile(r"[<>^=]?[-+]?0?\d{0,2},?(\.\d{1,2})?[a-zA-Z%]?")
"""Formats of values that stay short."""

if TYPE_CHECKING:
    from relibra.cli.recipes.python.evaluate import Evaluation


def value_of(evaluation: "Evaluation", node: ast.expr, scope: Scope) -> Any:
    """Return the value of an expression, or Unknown."""
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, PLAIN) else Unknown("a constant")
        case ast.Name(id=name):
            return scope.get(name)
        case ast.JoinedStr(values=values):
            return "".join(text_of(evaluation.value(each, scope)) for each in values)
        case ast.FormattedValue(value=value, format_spec=spec):
            found = evaluation.value(value, scope)
            if spec is None or not isinstance(found, str | int | float):
                return Unknown(ast.unparse(value)) if isinstance(found, Unknown) else found
            try:
                wanted = text_of(evaluation.value(spec, scope))
                return format(found, wanted) if _FORMAT.fullmatch(wanted) else Unknown(ast.unparse(value))
            except (ValueError, TypeError):
                return Unknown(ast.unparse(value))
        case ast.BinOp(left=left, op=operation, right=right):
            return combine(operation, evaluation.value(left, scope), evaluation.value(right, scope))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            found = evaluation.value(operand, scope)
            return found if isinstance(found, Unknown) else not is_true(found)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            found = evaluation.value(operand, scope)
            return -found if isinstance(found, int | float) else Unknown("a sign")
        case ast.BoolOp():
            return _boolean(evaluation, node, scope)
        case ast.Compare(left=left, ops=operations, comparators=rights):
            one = evaluation.value(left, scope)
            for comparison, right in zip(operations, rights, strict=True):
                other = evaluation.value(right, scope)
                found = compare(comparison, one, other)
                if isinstance(found, Unknown) or not found:
                    return found
                one = other
            return True
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return evaluation.value(body if is_true(evaluation.value(test, scope)) else orelse, scope)
        case ast.Attribute(value=owner, attr=name):
            return _attribute(evaluation, evaluation.value(owner, scope), name, ast.unparse(node))
        case ast.Subscript(value=owner, slice=index):
            return _item(evaluation, evaluation.value(owner, scope), index, scope)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            found = items_of(evaluation, items, scope)
            return tuple(found) if isinstance(node, ast.Tuple) else found
        case ast.Dict():
            return _dict(evaluation, node, scope)
        case ast.Call():
            return evaluation.call(node, scope)
        case ast.Lambda():
            return Function(node, scope)
        case ast.ListComp(elt=element, generators=generators) | ast.GeneratorExp(elt=element, generators=generators):
            return _comprehension(evaluation, element, generators, scope)
        case ast.NamedExpr(target=target, value=value):
            found = evaluation.value(value, scope)
            evaluation.assign(target, found, scope)
            return found
        case _:
            return Unknown(ast.unparse(node)[:80])


def _boolean(evaluation: "Evaluation", node: ast.BoolOp, scope: Scope) -> Any:
    found: Any = None
    for each in node.values:
        found = evaluation.value(each, scope)
        if is_true(found) != isinstance(node.op, ast.And):
            return found
    return found


def items_of(evaluation: "Evaluation", nodes: list[ast.expr], scope: Scope) -> list[Any]:
    """Return the values of expressions, with `*list` expanded."""
    found: list[Any] = []
    for each in nodes:
        if isinstance(each, ast.Starred):
            inner = evaluation.value(each.value, scope)
            found += inner if isinstance(inner, list | tuple) else [inner]
        else:
            found.append(evaluation.value(each, scope))
    return found


def _dict(evaluation: "Evaluation", node: ast.Dict, scope: Scope) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        inner = evaluation.value(value, scope)
        if key is None:
            found |= inner if isinstance(inner, dict) else {}
        elif isinstance(name := evaluation.value(key, scope), str | int | float | bool | tuple | type(None)):
            found[name] = inner
    return found


def _item(evaluation: "Evaluation", owner: Any, index: ast.expr, scope: Scope) -> Any:
    if isinstance(index, ast.Slice):
        parts = [
            None if each is None else evaluation.value(each, scope) for each in (index.lower, index.upper, index.step)
        ]
        if isinstance(owner, str | list | tuple) and all(isinstance(each, int | None) for each in parts):
            return owner[slice(*parts)]
        return Unknown("a slice")
    key = evaluation.value(index, scope)
    try:
        return owner[key] if isinstance(owner, str | list | tuple | dict) else Unknown("an item")
    except (LookupError, TypeError):
        return Unknown(f"[{text_of(key)}]")


def _attribute(evaluation: "Evaluation", owner: Any, name: str, source: str) -> Any:
    if isinstance(owner, Scope):
        return owner.get(name)
    if isinstance(owner, Class):
        return owner.attributes.get(name, Unknown(source))
    if isinstance(owner, Instance):
        if name in owner.values:
            return owner.values[name]
        found = owner.type.attributes.get(name, Unknown(source))
        if isinstance(found, Function):
            bound = Function(found.node, found.scope, owner, found.is_property)
            return evaluation.apply(bound, [], {}) if found.is_property else bound
        return found
    return Unknown(source)


def _comprehension(
    evaluation: "Evaluation", element: ast.expr, generators: list[ast.comprehension], scope: Scope
) -> Any:
    if len(generators) != 1:
        return Unknown("a comprehension")
    (generator,) = generators
    values = evaluation.value(generator.iter, scope)
    if not isinstance(values, list | tuple | dict | set | str):
        return Unknown("a comprehension")
    found = []
    for value in list(values):
        inner = Scope({}, scope)
        evaluation.assign(generator.target, value, inner)
        if all(is_true(evaluation.value(each, inner)) for each in generator.ifs):
            found.append(evaluation.value(element, inner))
    return found


def has_pattern(evaluation: "Evaluation", pattern: ast.pattern, subject: Any, scope: Scope) -> bool:
    """Return whether a value fits a pattern of `match`."""
    match pattern:
        case ast.MatchValue(value=value):
            return is_true(compare(ast.Eq(), subject, evaluation.value(value, scope)))
        case ast.MatchSingleton(value=value):
            return subject is value
        case ast.MatchOr(patterns=patterns):
            return any(has_pattern(evaluation, each, subject, scope) for each in patterns)
        case ast.MatchAs(pattern=inner, name=name):
            if inner is not None and not has_pattern(evaluation, inner, subject, scope):
                return False
            if name is not None:
                scope.values[name] = subject
            return True
        case ast.MatchSequence(patterns=patterns):
            return (
                isinstance(subject, list | tuple)
                and len(subject) == len(patterns)
                and all(
                    has_pattern(evaluation, each, item, scope) for each, item in zip(patterns, subject, strict=True)
                )
            )
        case _:
            return False
