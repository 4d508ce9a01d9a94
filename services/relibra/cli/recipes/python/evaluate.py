"""Evaluates the syntax tree of a launcher: its own texts, conditions and functions take effect, nothing else does."""

import ast
from collections import ChainMap
from contextlib import suppress
from pathlib import Path
from typing import Any

from relibra.cli.recipes.python.calls import Returning
from relibra.cli.recipes.python.expressions import Expressions
from relibra.cli.recipes.python.values import (
    OPERATORS,
    Class,
    Function,
    Instance,
    Scope,
    Unknown,
    apply,
    extend,
    is_true,
)
from relibra.cli.recipes.shell.sources import find_source
from relibra.errors import InvalidInput

_MAX_MODULES = 20
_GLOBAL = "global "
"""Before a name, marks in a function's scope that the name is one of the module."""
RECORDED = (
    *("execute_train", "exec_command", "exec_command_cpu", "exec_command_gpu", "exec_command_all_ray_node"),
    *("system", "Popen", "check_call", "check_output"),
)
"""Functions that start something. A launcher of a training calls one of them."""


class Leaving(Exception):
    """A `break` or `continue`."""


class Evaluation(Expressions):
    """The evaluation of a launcher.

    Args:
        path: where the launcher is. Modules that it imports are read if they are below a folder above it.
        given: options of the launcher, and variables of its environment.
        recorded: names of further functions whose calls are recorded and not followed.
    """

    def __init__(self, path: Path, given: dict[str, str], recorded: tuple[str, ...] = ()) -> None:
        super().__init__(given, (*RECORDED, *recorded))
        self.path = path.absolute()
        self._modules: dict[str, Scope] = {}

    def module(self, text: str) -> Scope:
        """Evaluate the text of the launcher and return its names.

        Raises:
            InvalidInput: it is no Python.
        """
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise InvalidInput.of("--recipe", expected="Python", got=error) from error
        scope: Scope = ChainMap({"__name__": "__recipe__", "__file__": str(self.path)})
        with suppress(Returning):
            self.run(tree.body, scope)
        return scope

    def run(self, body: list[ast.stmt], scope: Scope) -> None:
        """Evaluate statements."""
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        self.step()
        match node:
            case ast.FunctionDef():
                is_property = any(ast.unparse(each).endswith("property") for each in node.decorator_list)
                scope[node.name] = Function(node, scope, is_property=is_property)
            case ast.ClassDef():
                scope[node.name] = self._class(node, scope)
            case ast.Assign(targets=targets, value=value):
                found = self.value(value, scope)
                for target in targets:
                    self.assign(target, found, scope)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self.assign(target, self.value(value, scope), scope)
            case ast.AugAssign(target=target, op=sign, value=value):
                # A list is changed in place, and so for its caller too. The value of any other `x += y` is that of
                # `x + y`, whatever the context of the target says.
                if isinstance(sign, ast.Add) and isinstance(before := self.value(target, scope), list):
                    extend(before, self.value(value, scope))
                else:
                    self.assign(target, self.value(ast.BinOp(target, sign, value), scope), scope)
            case ast.If(test=test, body=body, orelse=orelse):
                self.run(body if self.holds(test, scope) else orelse, scope)
            case ast.Match():
                subject = self.value(node.subject, scope)
                if isinstance(subject, Unknown):
                    what = ast.unparse(node.subject)[:60]
                    self.stops.append(f"line {node.lineno}: {what!r} is not known; read as no pattern with a value")
                for case in node.cases:
                    fits = self._fits(case.pattern, subject, scope)
                    if fits and (case.guard is None or self.holds(case.guard, scope)):
                        return self.run(case.body, scope)
            case ast.For(target=target, iter=iterable, body=body):
                self._for(target, self.value(iterable, scope), body, scope)
            case ast.With(body=body) | ast.Try(body=body):
                self.run(body, scope)
            case ast.Return(value=value):
                raise Returning(None if value is None else self.value(value, scope))
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.Import(names=names):
                for alias in names:
                    name = alias.asname or alias.name.partition(".")[0]
                    scope[name] = self._import(alias.name) if alias.asname else Unknown(name)
            case ast.ImportFrom(module=module, names=names):
                found = self._import(module or "")
                for alias in names:
                    inner = found.get(alias.name) if isinstance(found, ChainMap) else None
                    scope[alias.asname or alias.name] = inner or self._import(f"{module}.{alias.name}")
            case ast.Raise(exc=error):
                # The caller goes on with a value that is not known, so that the rest of the launcher can be read.
                said = "" if error is None else ast.unparse(error)[:120]
                self.stops.append(f"line {node.lineno}: the launcher would stop here: {said}")
                raise Returning(Unknown(f"line {node.lineno}"))
            case ast.Break() | ast.Continue():
                raise Leaving(type(node).__name__)
            case ast.Global(names=shared):
                scope.update({_GLOBAL + name: True for name in shared})
            case ast.Assert() | ast.Pass():
                pass
            case _:
                self.stops.append(f"line {node.lineno}: {ast.unparse(node)[:60]!r} is not understood")
        return None

    def _import(self, name: str) -> Any:
        """Return the names of a module below a folder above the launcher; Unknown for any other module."""
        if name in self._modules:
            return self._modules[name]
        path = find_source(name.replace(".", "/") + ".py", self.path.parent, self.path) if "." in name else None
        if path is None or path == self.path or len(self._modules) > _MAX_MODULES:
            return Unknown(name)
        scope: Scope = ChainMap({"__name__": name, "__file__": str(path)})
        self._modules[name] = scope
        num_calls, num_stops = len(self.calls), len(self.stops)
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            self.run([each for each in tree.body if not isinstance(each, ast.Expr)], scope)
        except (OSError, SyntaxError, ValueError):
            return Unknown(name)
        except Returning:
            pass
        del self.calls[num_calls:], self.stops[num_stops:]
        return scope

    def _class(self, node: ast.ClassDef, scope: Scope) -> Class:
        made = Class({}, {})
        for each in node.bases:
            if isinstance(base := self.value(each, scope), Class):
                made.attributes |= base.attributes
                made.fields |= base.fields
        inner = ChainMap(made.attributes, *scope.maps)
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                made.fields[statement.target.id] = (statement.value, inner)
            else:
                self._statement(statement, inner)
        return made

    def _fits(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool:
        """Return whether a value fits a pattern of `match`."""
        match pattern:
            case ast.MatchValue(value=value):
                return is_true(apply(OPERATORS[ast.Eq], subject, self.value(value, scope)))
            case ast.MatchOr(patterns=patterns):
                return any(self._fits(each, subject, scope) for each in patterns)
            case ast.MatchAs(pattern=None, name=name):
                scope[name or "_"] = subject
                return True
            case ast.MatchSequence(patterns=patterns) if isinstance(subject, list) and len(subject) == len(patterns):
                return all(self._fits(each, item, scope) for each, item in zip(patterns, subject, strict=True))
        self.stops.append(f"line {pattern.lineno}: {ast.unparse(pattern)[:60]!r} is not understood")
        return False

    def _for(self, target: ast.expr, values: Any, body: list[ast.stmt], scope: Scope) -> None:
        if not isinstance(values, list | dict | str):
            self.stops.append(f"line {target.lineno}: what the loop runs over is not known")
            return
        for value in list(values):
            self.assign(target, value, scope)
            try:
                self.run(body, scope)
            except Leaving as leaving:
                if leaving.args[0] == "Break":
                    return

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Give a value to a target. What is no object of the launcher stays as it is."""
        match target:
            case ast.Name(id=name):
                (scope.maps[-1] if _GLOBAL + name in scope.maps[0] else scope)[name] = value
            case ast.Attribute(value=owner, attr=name):
                if isinstance(found := self.value(owner, scope), Instance):
                    found.values[name] = value
            case ast.Subscript(value=owner, slice=index):
                found, key = self.value(owner, scope), self.value(index, scope)
                if isinstance(found, dict) and isinstance(key, str | int):
                    found[key] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                fits = isinstance(value, list | tuple) and len(value) == len(targets)
                for number, each in enumerate(targets):
                    self.assign(each, value[number] if fits else Unknown("a part"), scope)
