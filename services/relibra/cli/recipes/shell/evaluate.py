"""Evaluates a parsed script: assignments and control flow take effect, and commands are recorded instead of run."""

import fnmatch
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from relibra.cli.recipes.shell import builtins
from relibra.cli.recipes.shell.arithmetic import NotANumber
from relibra.cli.recipes.shell.conditions import holds, parts_of
from relibra.cli.recipes.shell.parse import Node, ShellSyntaxError, line_of, named, parse, text_of
from relibra.cli.recipes.shell.sources import find_source
from relibra.cli.recipes.shell.unknown import shown, unknown, without_unknown
from relibra.cli.recipes.shell.variables import Variables
from relibra.cli.recipes.shell.words import Words
from relibra.errors import InvalidInput

_MAX_STEPS = 200_000
_MAX_DEPTH = 60
_MAX_ROUNDS = 1000
"""The rounds of a `while` after which the script goes on. Real ones wait for something that never happens here."""

Answer = Callable[[tuple[str, ...]], str | None]
"""Returns the output of a program that is known without running it, or None."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a script would do."""

    commands: tuple[tuple[str, ...], ...]
    """The words of the commands that it would start."""
    doubts: tuple[str, ...]
    """Parts that were not read: files that are not there, and what is not understood."""


def expand_script(path: Path, text: str, given: dict[str, str], answer: Answer = lambda _: None) -> Expansion:
    """Return the commands that a script would start.

    Args:
        path: where the script is, so that files beside it are found.
        text: its content.
        given: variables that the environment sets.
        answer: gives the output of programs that are known without running them.

    Raises:
        InvalidInput: the script is no bash, or does not come to an end.
    """
    variables = Variables(path.absolute(), dict(given), folder=path.absolute().parent)
    evaluation = Evaluation(variables, answer=answer)
    try:
        with suppress(Leaving):
            evaluation.run_all(parse(text).children)
    except RecursionError as error:
        raise InvalidInput(f"expected a script, got {path.name}, which is nested too deeply") from error
    return Expansion(tuple(evaluation.commands), tuple(dict.fromkeys(evaluation.doubts)))


class Leaving(Exception):
    """A `return`, `break` or `continue`."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


@dataclass(slots=True)
class Evaluation(Words):
    """The evaluation of a script, or of a part of it in a subshell."""

    variables: Variables
    commands: list[tuple[str, ...]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    output: list[str] | None = None
    """The text that a substitution captures; None if nobody does."""
    is_condition: bool = False
    """Whether the status decides what happens next. A command that is not run counts as failed there."""
    steps: list[int] = field(default_factory=lambda: [0])
    line: int = 0
    """The line of the command that is being evaluated."""
    depth: int = 0
    here_document: str | None = None
    answer: Answer = lambda _: None

    def run_all(self, nodes: list[Node]) -> int:
        """Evaluate commands one after the other, and return the status of the last."""
        status = 0
        for each in named(nodes):
            status = self.run(each)
        return status

    def run(self, node: Node) -> int:
        """Evaluate a command and return its status."""
        self.steps[0] += 1
        if self.steps[0] > _MAX_STEPS:
            raise InvalidInput(f"expected a script that comes to an end, got more than {_MAX_STEPS} steps")
        match node.type:
            case "command":
                return self._command(node)
            case "variable_assignment":
                self._assign(node)
            case "program" | "variable_assignments" | "do_group" | "else_clause":
                return self.run_all(node.children)
            case "declaration_command":
                for each in named(node.children):
                    if each.type == "variable_assignment":
                        self._assign(each)
                    else:
                        builtins.declare(self, self.fields(each))
            case "unset_command":
                for each in named(node.children):
                    self.variables.values.pop(text_of(each), None)
            case "redirected_statement":
                return self._redirected(node)
            case "compound_statement" if text_of(node.children[0]) == "((":
                return int(not self._calculate(node))
            case "compound_statement":
                return self.run_all(node.children)
            case "subshell":
                return self.subshell().run_all(node.children)
            case "list":
                return self._list(node)
            case "pipeline":
                *before, last = named(node.children)
                for each in before:
                    inner = self.subshell()
                    inner.output = []
                    inner.run(each)
                return self.run(last)
            case "negated_command":
                with self._as_condition(True):
                    return int(self.run_all(node.children) == 0)
            case "test_command":
                self.line = line_of(node)
                return self.tested(parts_of(node, self))
            case "if_statement" | "elif_clause":
                return self._if(node)
            case "for_statement":
                for value in [text for each in node.children_by_field_name("value") for text in self.fields(each)]:
                    self.variables.assign(text_of(node.child_by_field_name("variable")), value)
                    if self._ends_loop(node):
                        break
            case "c_style_for_statement":
                self._calculate(node.child_by_field_name("initializer"))
                while self._calculate(node.child_by_field_name("condition"), default=1) and not self._ends_loop(node):
                    self._calculate(node.child_by_field_name("update"))
            case "while_statement":
                self._while(node)
            case "case_statement":
                return self._case(node)
            case "function_definition":
                self.functions[text_of(node.child_by_field_name("name"))] = node.child_by_field_name("body")
            case _:
                self.doubts.append(f"line {line_of(node)}: {text_of(node)[:60]!r} is not understood")
        return 0

    def capture(self, node: Node) -> str:
        """Return the output of a substitution, whose assignments end with it."""
        inner = self.subshell()
        inner.output, inner.is_condition = [], False
        with suppress(Leaving):
            inner.run_all(node.children)
        return "".join(inner.output or ()).rstrip("\n")

    def subshell(self) -> "Evaluation":
        """Return an evaluation whose assignments end with it."""
        if self.depth >= _MAX_DEPTH:
            raise InvalidInput(f"expected a script, got subshells more than {_MAX_DEPTH} deep")
        return Evaluation(
            self.variables.copied(),
            self.commands,
            self.doubts,
            dict(self.functions),
            self.output,
            self.is_condition,
            self.steps,
            self.line,
            self.depth + 1,
            answer=self.answer,
        )

    def call(self, argv: list[str]) -> int:
        """Evaluate a command with its arguments: a function, a builtin, or a program, which is recorded."""
        name, *arguments = argv
        if (body := self.functions.get(name)) is not None:
            return self._inside(arguments, lambda: self.run(body))
        if name in ("source", "."):
            return self.source(arguments[0], arguments[1:]) if arguments else 1
        if name in ("return", "break", "continue"):
            raise Leaving(name)
        if name in builtins.STARTING and arguments:
            return self.call(arguments)
        if (builtin := builtins.BUILTINS.get(name)) is not None:
            return builtin(self, arguments)
        if (known := self.answer(tuple(argv))) is not None:
            self.write(known)
            return 0
        self.commands.append(tuple(argv))
        if self.is_condition:
            return 1
        self.write(unknown(f"$({' '.join(argv)})"))
        return 0

    def write(self, text: str) -> None:
        """Add to what a substitution captures."""
        if self.output is not None:
            self.output.append(text)

    def source(self, name: str, arguments: list[str]) -> int:
        """Evaluate a file beside the script."""
        path = find_source(without_unknown(name), self.variables.folder, self.variables.script)
        script, why = None, "no such file"
        try:
            script = None if path is None else parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, ShellSyntaxError) as error:
            why = str(error)
        if path is None or script is None:
            self.doubts.append(f"line {self.line}: source {shown(name)} ({why}): settings in this file are not known")
            return 1
        plain, self.variables.script = self.variables.script, path
        try:
            return self._inside(arguments or self.variables.positional, lambda: self.run(script))
        finally:
            self.variables.script = plain

    def _inside(self, arguments: list[str], run: Callable[[], int]) -> int:
        """Evaluate a function or a file with its arguments."""
        if self.depth >= _MAX_DEPTH:
            raise InvalidInput(f"expected a script, got calls more than {_MAX_DEPTH} deep")
        self.depth += 1
        try:
            with self.variables.called_with(arguments):
                return run()
        except Leaving as leaving:
            if leaving.word != "return":
                raise
            return 0
        finally:
            self.depth -= 1

    def _command(self, node: Node) -> int:
        parts = named(node.children)
        assignments = [each for each in parts if each.type == "variable_assignment"]
        plain, self.line = dict(self.variables.values), line_of(node)
        for each in assignments:
            self._assign(each)
        argv = []
        for each in parts:
            if each.type == "herestring_redirect":
                self.here_document = self.text(each.named_children[0])
            elif each.type == "command_name":
                argv += self.fields(each.named_children[0])
            elif each not in assignments and not each.type.endswith("_redirect"):
                argv += self.fields(each)
        try:
            return self.call(argv) if argv else 0
        finally:
            self.here_document = None
            if assignments and argv:
                self.variables.values = plain

    def _redirected(self, node: Node) -> int:
        """Evaluate a command with its here document; other redirections have no effect."""
        status = 0
        for each in node.children_by_field_name("redirect"):
            if each.type == "herestring_redirect":
                self.here_document = self.text(each.named_children[0])
            elif each.type == "heredoc_redirect":
                found = {inner.type: text_of(inner) for inner in each.named_children}
                body, is_literal = found.get("heredoc_body", ""), not found["heredoc_start"].isalnum()
                self.here_document = body if is_literal else self.quoted(body.replace('"', '\\"')).replace('\\"', '"')
        body_node = node.child_by_field_name("body")
        if body_node is not None:
            status = self.run(body_node)
        self.here_document = None
        return status

    def _assign(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        is_appended = any(each.type == "+=" for each in node.children)
        if value is not None and value.type == "array":
            array = dict(self.variables.array(text_of(name))) if is_appended else {}
            for each in named(value.children):
                for element in self.fields(each):
                    key_text, bracket, keyed = element[1:].partition("]=")
                    if element.startswith("[") and bracket:
                        array[key_text] = keyed
                    else:
                        array[str(len(array))] = element
            self.variables.assign_array(text_of(name), array)
            return
        text = "" if value is None else self.text(value)
        key: str | None = None
        if name.type == "subscript":
            key = self.key(text_of(name.child_by_field_name("index")))
            name = name.child_by_field_name("name")
        self.variables.assign(text_of(name), text, is_appended=is_appended, key=key)

    def _list(self, node: Node) -> int:
        """Evaluate `a && b || c`. All but the last command decide what happens next."""
        parts: list[tuple[str, Node]] = []
        while node.type == "list":
            node, operator, right = node.children
            parts.insert(0, (operator.type, right))
        status = self._part(node, parts[0][0])
        for number, (operator, part) in enumerate(parts):
            if (operator == "&&") == (status == 0):
                status = self._part(part, parts[number + 1][0] if number + 1 < len(parts) else "")
        return status

    def _part(self, node: Node, operator: str) -> int:
        with self._as_condition(operator == "||" or (operator == "&&" and self.output is not None)):
            return self.run(node)

    def tested(self, parts: list[str]) -> int:
        """Return the status of a condition."""
        try:
            return int(not holds(parts, self))
        except ShellSyntaxError as error:
            self.doubts.append(f"line {self.line}: {error}")
            return 1

    def _calculate(self, node: Node | None, default: int = 0) -> int:
        try:
            return default if node is None else self.number(text_of(node).removeprefix("((").removesuffix("))"))
        except NotANumber:
            return 0

    def _if(self, node: Node) -> int:
        then = next(number for number, each in enumerate(node.children) if each.type == "then")
        body = node.children[then + 1 :]
        others = [each for each in body if each.type in ("elif_clause", "else_clause")]
        if self._decide(node.children[:then]):
            return self.run_all([each for each in body if each not in others])
        for each in others:
            if each.type == "else_clause" or self._decide(each.children[: _then(each)]):
                return self.run_all(each.children[_then(each) :])
        return 0

    def _decide(self, condition: list[Node]) -> bool:
        with self._as_condition(True):
            return self.run_all(condition) == 0

    def _case(self, node: Node) -> int:
        subject = without_unknown(self.text(node.child_by_field_name("value")))
        for each in node.children:
            if each.type == "case_item":
                patterns = each.children_by_field_name("value")
                if any(fnmatch.fnmatchcase(subject, self.pattern([pattern])) for pattern in patterns):
                    return self.run_all([inner for inner in each.children if inner not in patterns])
        return 0

    def _while(self, node: Node) -> None:
        """Evaluate `while` or `until`. A loop that waits for a program, which never succeeds here, runs once."""
        for _ in range(_MAX_ROUNDS):
            num_commands = len(self.commands)
            is_met = self._decide(node.children_by_field_name("condition"))
            waits = len(self.commands) > num_commands
            if is_met == (node.children[0].type == "until") or self._ends_loop(node) or waits:
                return

    def _ends_loop(self, node: Node) -> bool:
        """Evaluate the body of a loop, and return whether it says `break`."""
        try:
            self.run(node.child_by_field_name("body"))
        except Leaving as leaving:
            if leaving.word == "return":
                raise
            return leaving.word == "break"
        return False

    @contextmanager
    def _as_condition(self, is_condition: bool) -> Iterator[None]:
        plain, self.is_condition = self.is_condition, is_condition or self.is_condition
        try:
            yield
        finally:
            self.is_condition = plain


def _then(node: Node) -> int:
    """Return the position after `then`, or 0 if there is none."""
    return next((number + 1 for number, each in enumerate(node.children) if each.type == "then"), 0)
