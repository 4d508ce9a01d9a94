"""Calls of a launcher's own functions and classes."""

import ast
from typing import Any

from relibra.cli.recipes.python.values import Class, Function, Instance, Scope, Unknown, literal

_MAX_DEPTH = 40


class Returning(Exception):
    """A `return` with its value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Calls:
    """Calls functions and makes objects.

    Args:
        given: options of the launcher, and variables of its environment.
    """

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given
        self._depth = 0

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression, or Unknown."""
        raise NotImplementedError

    def run(self, body: list[ast.stmt], scope: Scope) -> None:
        """Evaluate statements."""
        raise NotImplementedError

    def instance(self, made: Class, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Return an object of a class, as a dataclass makes it."""
        found = Instance(made, dict(zip(made.fields, arguments, strict=False)) | keywords)
        for name, (default, scope) in made.fields.items():
            if name not in found.values:
                found.values[name] = Unknown(name) if default is None else self._default(default, scope)
        if isinstance(after := made.attributes.get("__post_init__"), Function):
            self.enter(Function(after.node, after.scope, found), [], {})
        return found

    def _default(self, default: ast.expr, scope: Scope) -> Any:
        """Return the default of a field or an argument: a value, or what `field`, `Field` or `Option` say."""
        if not (isinstance(default, ast.Call) and ast.unparse(default.func).lower().endswith(("field", "option"))):
            return self.value(default, scope)
        for each in default.keywords:
            if each.arg == "default":
                return self.value(each.value, scope)
            if each.arg == "default_factory":
                return self.value(ast.Call(each.value, [], []), scope)
        return self.value(default.args[0], scope) if default.args else Unknown("field()")

    def enter(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Return the result of a function of the launcher."""
        if self._depth >= _MAX_DEPTH:
            return Unknown("a deep call")
        self._depth += 1
        try:
            inner = function.scope.new_child(self._arguments(function, arguments, keywords))
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, inner)
            self.run(function.node.body, inner)
        except Returning as returning:
            return returning.value
        finally:
            self._depth -= 1
        return None

    def _arguments(self, function: Function, given: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        declared = function.node.args
        positional = [each.arg for each in (*declared.posonlyargs, *declared.args)]
        names = [*positional, *(each.arg for each in declared.kwonlyargs)]
        defaults = [*([None] * (len(positional) - len(declared.defaults))), *declared.defaults, *declared.kw_defaults]
        values = given if function.bound is None else [function.bound, *given]
        found = {
            name: Unknown(name) if default is None else self._default(default, function.scope)
            for name, default in zip(names, defaults, strict=True)
        }
        found |= zip(positional, values, strict=False)
        found |= {name: value for name, value in keywords.items() if name in names}
        if declared.vararg is not None:
            found[declared.vararg.arg] = values[len(positional) :]
        if declared.kwarg is not None:
            found[declared.kwarg.arg] = {name: value for name, value in keywords.items() if name not in names}
        return found

    def start(self, function: Function, scope: Scope) -> None:
        """Call a function as its command line does: each argument has its default, or what was given for it."""
        keywords: dict[str, Any] = {}
        for each in (*function.node.args.args, *function.node.args.kwonlyargs):
            made = None if each.annotation is None else self.value(each.annotation, scope)
            if isinstance(made, Class):
                options = {name: literal(self.given[name]) for name in made.fields if name in self.given}
                keywords[each.arg] = self.instance(made, [], options)
            elif each.arg in self.given:
                keywords[each.arg] = literal(self.given[each.arg])
        self.enter(function, [], keywords)
