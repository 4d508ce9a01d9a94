"""Values of expressions in a launcher."""

import ast
from collections import ChainMap
from typing import Any

from relibra.cli.recipes.python.calls import Calls
from relibra.cli.recipes.python.values import (
    FUNCTIONS,
    METHODS,
    OPERATORS,
    PLAIN,
    Class,
    Function,
    Instance,
    Scope,
    Unknown,
    apply,
    extend,
    is_small,
    is_true,
    text_of,
)
from relibra.errors import InvalidInput

_MAX_STEPS = 200_000


class Expressions(Calls):
    """Evaluates expressions."""

    def __init__(self, given: dict[str, str], recorded: tuple[str, ...]) -> None:
        super().__init__(given)
        self.calls: list[tuple[str, list[Any], dict[str, Any]]] = []
        """Calls of functions that are recorded and not followed: name, arguments, keywords."""
        self.stops: list[str] = []
        """Lines at which the launcher would raise an error, or that are not understood or not known."""
        self._recorded = recorded
        self._steps = 0

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Give a value to a target."""
        raise NotImplementedError

    def step(self) -> None:
        """Count a step, so that reading a launcher comes to an end."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise InvalidInput(f"expected a launcher that comes to an end, got more than {_MAX_STEPS} steps")

    def holds(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a condition holds. One that is not known does not, and is listed."""
        found = self.value(node, scope)
        if isinstance(found, Unknown):
            self.stops.append(f"line {node.lineno}: {ast.unparse(node)[:60]!r} is not known; read as false")
        return is_true(found)

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression, or Unknown."""
        self.step()
        found: Any = None
        match node:
            case ast.Constant(value=constant) if isinstance(constant, PLAIN):
                return constant
            case ast.Name(id=name):
                return scope.get(name, Unknown(name))
            case ast.JoinedStr(values=parts):
                return "".join(text_of(self.value(each, scope)) for each in parts)
            case ast.FormattedValue(value=inner, format_spec=None):
                found = self.value(inner, scope)
                return Unknown(ast.unparse(inner)) if isinstance(found, Unknown) else found
            case ast.BinOp(left=left, op=sign, right=right):
                return _combined(sign, self.value(left, scope), self.value(right, scope))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                found = self.value(operand, scope)
                return found if isinstance(found, Unknown) else not is_true(found)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return apply(lambda found: -found, self.value(operand, scope))
            case ast.BoolOp(op=sign, values=parts):
                for each in parts[:-1]:
                    found = self.value(each, scope)
                    if isinstance(found, Unknown) and isinstance(sign, ast.Or):
                        self.stops.append(f"line {each.lineno}: {ast.unparse(each)[:60]!r} is not known; read as false")
                    if is_true(found) != isinstance(sign, ast.And):
                        return found
                return self.value(parts[-1], scope)
            case ast.Compare(left=left, ops=[sign], comparators=[right]):
                one, other = self.value(left, scope), self.value(right, scope)
                return apply(OPERATORS[type(sign)], one, other) if is_small([one, other]) else Unknown("a comparison")
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self.value(body if self.holds(test, scope) else orelse, scope)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self.value(owner, scope), name, ast.unparse(node))
            case ast.Subscript(value=owner, slice=index):
                key = self._slice(index, scope) if isinstance(index, ast.Slice) else self.value(index, scope)
                found = self.value(owner, scope)
                return Unknown(ast.unparse(node)) if isinstance(key, Unknown) else apply(lambda it: it[key], found)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return self._items(items, scope)
            case ast.Dict(keys=keys, values=parts):
                found = {}
                for at, each in zip(keys, parts, strict=True):
                    inner = self.value(each, scope)
                    if at is None:
                        found |= inner if isinstance(inner, dict) else {}
                    elif not isinstance(name := self.value(at, scope), Unknown | list | dict | set):
                        found[name] = inner
                return found
            case ast.Call():
                return self._call(node, scope)
            case ast.Lambda():
                return Function(node, scope)
            case ast.ListComp(elt=element, generators=[each]) | ast.GeneratorExp(elt=element, generators=[each]):
                return self._comprehension(element, each, scope)
            case ast.NamedExpr(target=target, value=inner):
                found = self.value(inner, scope)
                self.assign(target, found, scope)
                return found
        return Unknown(ast.unparse(node)[:80])

    def _slice(self, node: ast.Slice, scope: Scope) -> slice:
        return slice(*(each and self.value(each, scope) for each in (node.lower, node.upper, node.step)))

    def _items(self, nodes: list[ast.expr], scope: Scope) -> list[Any]:
        """Return the values of expressions, with `*list` expanded."""
        found: list[Any] = []
        for each in nodes:
            inner = self.value(each.value if isinstance(each, ast.Starred) else each, scope)
            found += inner if isinstance(each, ast.Starred) and isinstance(inner, list) else [inner]
        return found

    def _attribute(self, owner: Any, name: str, source: str) -> Any:
        if isinstance(owner, ChainMap):
            return owner.get(name, Unknown(source))
        if isinstance(owner, Class):
            return owner.attributes.get(name, Unknown(source))
        if not isinstance(owner, Instance):
            return Unknown(source)
        if name in owner.values:
            return owner.values[name]
        found = owner.type.attributes.get(name, Unknown(source))
        if isinstance(found, Function):
            bound = Function(found.node, found.scope, owner)
            return self.enter(bound, [], {}) if found.is_property else bound
        return found

    def _comprehension(self, element: ast.expr, generator: ast.comprehension, scope: Scope) -> Any:
        values = self.value(generator.iter, scope)
        if not isinstance(values, list | dict | str):
            return Unknown("a comprehension")
        found = []
        for value in list(values):
            inner = scope.new_child()
            self.assign(generator.target, value, inner)
            if all(self.holds(each, inner) for each in generator.ifs):
                found.append(self.value(element, inner))
        return found

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        """Return the result of a call: of the launcher's own functions, and of some of Python's."""
        arguments = self._items(node.args, scope)
        keywords: dict[str, Any] = {}
        for each in node.keywords:
            found = self.value(each.value, scope)
            keywords |= {each.arg: found} if each.arg is not None else found if isinstance(found, dict) else {}
        name = ast.unparse(node.func)
        short = name.rpartition(".")[2]
        if short in self._recorded:
            self.calls.append((short, arguments, keywords))
            return Unknown(f"{name}()")
        if name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and arguments:
            return self.given.get(str(arguments[0]), arguments[1] if len(arguments) > 1 else None)
        if name in ("Path", "pathlib.Path") and arguments:
            return text_of(arguments[0])
        if name in FUNCTIONS and name not in scope:
            return FUNCTIONS[name](*arguments) if name == "str" else apply(FUNCTIONS[name], *arguments, **keywords)
        if isinstance(node.func, ast.Attribute) and short in METHODS.split():
            owner = self.value(node.func.value, scope)
            if isinstance(owner, PLAIN):
                if short == "update" and any(isinstance(each, Unknown) for each in arguments):
                    self.stops.append(f"line {node.lineno}: what {name} adds is not known")
                return _method(owner, short, arguments, keywords)
        function = self.value(node.func, scope)
        if isinstance(function, Function):
            return self.enter(function, arguments, keywords)
        if isinstance(function, Class):
            return self.instance(function, arguments, keywords)
        return Unknown(f"{name}()")


def _method(owner: Any, name: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
    if name == "join" and arguments and isinstance(arguments[0], list):
        arguments = [[text_of(each) for each in arguments[0]]]
    if name == "append" and isinstance(owner, list):
        return owner.append(*arguments)
    if name == "extend" and isinstance(owner, list):
        return extend(owner, *arguments)
    if name == "insert" and isinstance(owner, list) and len(arguments) == 2:
        at, value = arguments
        return owner.insert(at, value) if isinstance(at, int) else owner.append(Unknown("insert()"))
    if name == "get" and isinstance(owner, dict) and arguments and isinstance(arguments[0], str | int):
        return owner.get(*arguments)
    function = getattr(owner, name, None)
    return Unknown(f"{name}()") if function is None else apply(function, *arguments, **keywords)


def _combined(sign: ast.operator, left: Any, right: Any) -> Any:
    """Return `left sign right`."""
    if isinstance(left, str) and isinstance(sign, ast.Div):
        return f"{left.rstrip('/')}/{text_of(right).lstrip('/')}"
    if isinstance(sign, ast.Add) and (isinstance(left, str) or isinstance(right, str)):
        left, right = text_of(left), text_of(right)
    function = OPERATORS.get(type(sign))
    return Unknown("an operation") if function is None else apply(function, left, right)
