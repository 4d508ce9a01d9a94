"""Evaluates the syntax tree of a launcher: its own texts, conditions and functions take effect, nothing else does."""

import ast
from contextlib import suppress
from pathlib import Path
from typing import Any

from relibra.cli.recipes.python.expressions import has_pattern, items_of, value_of
from relibra.cli.recipes.python.operators import FUNCTIONS, call_function, call_method, combine
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
from relibra.cli.recipes.shell.sources import find_source
from relibra.errors import InvalidInput

_MAX_STEPS = 200_000
_MAX_DEPTH = 40


class Returning(Exception):
    """A `return` with its value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Leaving(Exception):
    """A `break` or `continue`."""


class Evaluation:
    """The evaluation of a launcher.

    Args:
        path: where the launcher is. Modules that it imports are read if they are below a folder above it.
        given: options of the launcher, and variables of its environment.
        recorded: names of further functions whose calls are recorded and not followed.
    """

    def __init__(self, path: Path, given: dict[str, str], recorded: tuple[str, ...] = ()) -> None:
        self.path = path.absolute()
        self._recorded = (*RECORDED, *recorded)
        self.calls: list[tuple[str, list[Any], dict[str, Any]]] = []
        """Calls of functions that are not the launcher's own: name, arguments, keywords."""
        self.stops: list[str] = []
        """Lines at which the launcher would raise an error."""
        self._given = given
        self._steps = 0
        self._depth = 0
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
        scope = Scope({"__name__": "__recipe__", "__file__": str(self.path)})
        with suppress(Returning):
            self._run(tree.body, scope)
        return scope

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise InvalidInput(f"expected a launcher that comes to an end, got more than {_MAX_STEPS} steps")

    def _run(self, body: list[ast.stmt], scope: Scope) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        self._step()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = {ast.unparse(each) for each in node.decorator_list}
                is_property = bool(decorators & {"property", "cached_property", "functools.cached_property"})
                scope.values[node.name] = Function(node, scope, is_property=is_property)
            case ast.ClassDef():
                scope.values[node.name] = self._class(node, scope)
            case ast.Assign(targets=targets, value=value):
                found = self.value(value, scope)
                for target in targets:
                    self.assign(target, found, scope)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.assign(target, self.value(value, scope), scope)
            case ast.AugAssign(target=target, op=operation, value=value):
                before = self.value(_loaded(target), scope)
                self.assign(target, combine(operation, before, self.value(value, scope)), scope)
            case ast.If(test=test, body=body, orelse=orelse):
                self._run(body if is_true(self.value(test, scope)) else orelse, scope)
            case ast.Match():
                for case in node.cases:
                    fits = has_pattern(self, case.pattern, self.value(node.subject, scope), scope)
                    if fits and (case.guard is None or is_true(self.value(case.guard, scope))):
                        self._run(case.body, scope)
                        return
            case ast.For(target=target, iter=iterable, body=body, orelse=orelse):
                self._for(target, self.value(iterable, scope), body, scope)
                self._run(orelse, scope)
            case ast.With(body=body) | ast.Try(body=body):
                self._run(body, scope)
            case ast.Return(value=value):
                raise Returning(None if value is None else self.value(value, scope))
            case ast.Expr(value=value):
                self.value(value, scope)
            case ast.Import(names=names):
                for alias in names:
                    module = self._import(alias.name)
                    scope.values[alias.asname or alias.name.partition(".")[0]] = (
                        module if alias.asname or "." not in alias.name else Unknown(alias.name)
                    )
            case ast.ImportFrom(module=name, names=names):
                module = self._import(name or "")
                for alias in names:
                    inner = module.values.get(alias.name) if isinstance(module, Scope) else None
                    found = self._import(f"{name}.{alias.name}") if inner is None else inner
                    scope.values[alias.asname or alias.name] = found
            case ast.Raise(exc=error):
                # The caller goes on with a value that is not known, so that the rest of the launcher can be read.
                said = "" if error is None else ast.unparse(error)
                self.stops.append(f"line {node.lineno}: the launcher would stop here: {said[:120]}")
                raise Returning(Unknown(f"line {node.lineno}"))
            case ast.Break() | ast.Continue():
                raise Leaving(type(node).__name__)
            case _:
                pass  # assertions, deletions, loops without an end

    def _import(self, name: str) -> Any:
        """Return the names of a module below a folder above the launcher; Unknown for any other module."""
        if name in self._modules:
            return self._modules[name]
        path = find_source(name.replace(".", "/") + ".py", self.path.parent, self.path) if "." in name else None
        if path is None or path == self.path or len(self._modules) > 20:
            return Unknown(name)
        scope = self._modules[name] = Scope({"__name__": name, "__file__": str(path)})
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            return Unknown(name)
        kept = [each for each in tree.body if not isinstance(each, ast.Expr)]
        num_calls = len(self.calls)
        with suppress(Returning):
            self._run(kept, scope)
        del self.calls[num_calls:]
        return scope

    def _class(self, node: ast.ClassDef, scope: Scope) -> Class:
        made = Class(node.name, {}, {}, scope)
        for each in node.bases:
            base = self.value(each, scope)
            if isinstance(base, Class):
                made.attributes |= base.attributes
                made.fields |= base.fields
        inner = Scope(made.attributes, scope)
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                made.fields[statement.target.id] = statement.value
                made.attributes[f"scope of {statement.target.id}"] = inner
            else:
                self._statement(statement, inner)
        return made

    def _for(self, target: ast.expr, values: Any, body: list[ast.stmt], scope: Scope) -> None:
        if not isinstance(values, list | tuple | dict | set | str):
            return
        for value in list(values):
            self.assign(target, value, scope)
            try:
                self._run(body, scope)
            except Leaving as leaving:
                if leaving.args[0] == "Break":
                    return

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Give a value to a target. What is no object of the launcher stays as it is."""
        match target:
            case ast.Name(id=name):
                scope.values[name] = value
            case ast.Attribute(value=owner, attr=name):
                found = self.value(owner, scope)
                if isinstance(found, Instance):
                    found.values[name] = value
            case ast.Subscript(value=owner, slice=index):
                found, key = self.value(owner, scope), self.value(index, scope)
                if isinstance(found, dict) and isinstance(key, str | int):
                    found[key] = value
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                items = value if isinstance(value, list | tuple) and len(value) == len(targets) else None
                for number, each in enumerate(targets):
                    self.assign(each, Unknown("a part") if items is None else items[number], scope)
            case _:
                pass

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression, or Unknown."""
        self._step()
        return value_of(self, node, scope)

    def call(self, node: ast.Call, scope: Scope) -> Any:
        """Return the result of a call: of the launcher's own functions, and of some of Python's."""
        arguments = items_of(self, node.args, scope)
        keywords: dict[str, Any] = {}
        for each in node.keywords:
            found = self.value(each.value, scope)
            if each.arg is not None:
                keywords[each.arg] = found
            elif isinstance(found, dict):
                keywords |= {str(name): value for name, value in found.items()}
        name = ast.unparse(node.func)
        short = name.rpartition(".")[2]
        if short in self._recorded:
            self.calls.append((short, arguments, keywords))
            return Unknown(f"{name}()")
        if name in ("os.environ.get", "os.getenv", "environ.get", "getenv"):
            known = self._given.get(str(arguments[0])) if arguments else None
            return known if known is not None else arguments[1] if len(arguments) > 1 else None
        if name in ("Path", "pathlib.Path") and arguments:
            return text_of(arguments[0])
        if short == "dedent" and arguments:
            return arguments[0]
        if isinstance(node.func, ast.Name) and isinstance(scope.get(name), Unknown) and name in (*FUNCTIONS, "range"):
            return call_function(name, arguments, keywords)
        if isinstance(node.func, ast.Attribute):
            owner = self.value(node.func.value, scope)
            if isinstance(owner, str | list | dict | set):
                return call_method(owner, short, arguments, keywords)
        function = self.value(node.func, scope)
        if isinstance(function, Function):
            return self.apply(function, arguments, keywords)
        if isinstance(function, Class):
            return self.instance(function, arguments, keywords)
        return Unknown(f"{name}()")

    def instance(self, made: Class, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Return an object of a class, as a dataclass makes it."""
        found = Instance(made)
        given = dict(zip(made.fields, arguments, strict=False)) | keywords
        for name, default in made.fields.items():
            if name in given:
                found.values[name] = given[name]
            elif default is not None:
                found.values[name] = self._default(default, made.attributes.get(f"scope of {name}", made.scope))
            else:
                found.values[name] = Unknown(name)
        after = made.attributes.get("__post_init__")
        if isinstance(after, Function):
            self.apply(Function(after.node, after.scope, found), [], {})
        return found

    def _default(self, default: ast.expr, scope: Scope) -> Any:
        """Return the default of a field: `field(default_factory=...)`, `field(default=...)` or a value."""
        if isinstance(default, ast.Call) and ast.unparse(default.func).rpartition(".")[2] in (
            "field",
            "Field",
            "Option",
        ):
            for each in default.keywords:
                if each.arg == "default":
                    return self.value(each.value, scope)
                if each.arg == "default_factory":
                    factory = self.value(each.value, scope)
                    if isinstance(factory, Function):
                        return self.apply(factory, [], {})
                    return call_function(ast.unparse(each.value), [], {})
            return self.value(default.args[0], scope) if default.args else Unknown("field()")
        return self.value(default, scope)

    def apply(self, function: Function, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Return the result of a function of the launcher."""
        if self._depth >= _MAX_DEPTH:
            return Unknown("a deep call")
        self._depth += 1
        try:
            inner = Scope(self._arguments(function, arguments, keywords), function.scope)
            if isinstance(function.node, ast.Lambda):
                return self.value(function.node.body, inner)
            self._run(function.node.body, inner)
        except Returning as returning:
            return returning.value
        except Leaving:
            return None
        finally:
            self._depth -= 1
        return None

    def _arguments(self, function: Function, given: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        declared = function.node.args
        names = [each.arg for each in (*declared.posonlyargs, *declared.args)]
        values = [function.bound, *given] if function.bound is not None else given
        found: dict[str, Any] = {}
        for each, default in zip(reversed(names), reversed(declared.defaults), strict=False):
            found[each] = self._default(default, function.scope)
        for keyword, keyword_default in zip(declared.kwonlyargs, declared.kw_defaults, strict=True):
            if keyword_default is not None:
                found[keyword.arg] = self._default(keyword_default, function.scope)
        found |= dict(zip(names, values, strict=False))
        if declared.vararg is not None:
            found[declared.vararg.arg] = list(values[len(names) :])
        known = {*names, *(each.arg for each in declared.kwonlyargs)}
        found |= {name: value for name, value in keywords.items() if name in known}
        if declared.kwarg is not None:
            found[declared.kwarg.arg] = {name: value for name, value in keywords.items() if name not in known}
        return {name: found.get(name, Unknown(name)) for name in {*found, *known}}

    def enter(self, function: Function, scope: Scope) -> None:
        """Call a function as its command line does: each argument has its default, or what was given for it."""
        declared = function.node.args
        keywords: dict[str, Any] = {}
        for each in (*declared.posonlyargs, *declared.args, *declared.kwonlyargs):
            annotation = None if each.annotation is None else self.value(each.annotation, scope)
            if isinstance(annotation, Class):
                keywords[each.arg] = self.instance(annotation, [], self._given_for(annotation))
            elif each.arg in self._given:
                keywords[each.arg] = literal(self._given[each.arg])
        self.apply(function, [], keywords)

    def _given_for(self, made: Class) -> dict[str, Any]:
        return {name: literal(self._given[name]) for name in made.fields if name in self._given}


RECORDED = (
    *("execute_train", "exec_command", "exec_command_cpu", "exec_command_gpu", "exec_command_all_ray_node"),
    *("system", "Popen", "check_call", "check_output"),
)
"""Functions that start something. A launcher of a training calls one of them."""


def literal(text: str) -> Any:
    """Return a text as the Python value that it spells, else as it is."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text)
    return found if isinstance(found, PLAIN) else text


def _loaded(target: ast.expr) -> ast.expr:
    """Return the target of an assignment as an expression that reads it."""
    match target:
        case ast.Name(id=name):
            return ast.Name(id=name, ctx=ast.Load())
        case ast.Attribute(value=value, attr=name):
            return ast.Attribute(value=value, attr=name, ctx=ast.Load())
        case ast.Subscript(value=value, slice=index):
            return ast.Subscript(value=value, slice=index, ctx=ast.Load())
        case _:
            return target
