"""The commands of a script: builtins and functions take effect, and programs are recorded instead of run."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Self

from relibra.cli.recipes.shell.arithmetic import NotANumber
from relibra.cli.recipes.shell.builtins import BUILTINS, STARTING
from relibra.cli.recipes.shell.parse import Node, ShellSyntaxError, line_of, named, parse, text_of
from relibra.cli.recipes.shell.sources import find_source
from relibra.cli.recipes.shell.unknown import shown, unknown, without_unknown
from relibra.cli.recipes.shell.words import Array, Words
from relibra.errors import InvalidInput

_MAX_DEPTH = 60

Saved = dict[str, str | Array | None]
"""Variables as they were, so that they can be restored; None for one that was not set."""
Answer = Callable[[tuple[str, ...]], str | None]
"""Returns the output of a program that is known without running it, or None."""


class Leaving(Exception):
    """A `return`, `break` or `continue`, with its number: the status, or how many loops it leaves."""

    def __init__(self, word: str, number: int = 0) -> None:
        super().__init__(word)
        self.word = word
        self.number = number


@dataclass(slots=True)
class Commands(Words):
    """The state of a script, or of a part of it in a subshell, while it is evaluated."""

    commands: list[tuple[str, ...]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    choices: dict[str, int] = field(default_factory=dict)
    """The lines of conditions that depend on the outside, by the doubt about each."""
    otherwise: frozenset[int] = frozenset()
    """The lines of such conditions that are read the other way round."""
    functions: dict[str, Node] = field(default_factory=dict)
    output: list[str] | None = None
    """The text that a substitution captures; None if nobody does."""
    is_condition: bool = False
    """Whether the status decides what happens next. A command that is not run counts as failed there."""
    line: int = 0
    """The line of the command that is being evaluated."""
    depth: int = 0
    num_loops: int = 0
    """The loops that the command is in."""
    here_document: str | None = None
    locals: Saved | None = None
    """What the local variables of the function hid; None outside functions."""
    answer: Answer = lambda _: None

    def run(self, node: Node) -> int:
        """Evaluate a command of any kind and return its status."""
        raise NotImplementedError

    def doubt(self, text: str) -> None:
        """List something that is not understood or not known, with the line of the command."""
        self.doubts.append(f"line {self.line}: {text}")

    def calculate(self, expression: str) -> int:
        """Return the value of an arithmetic expression. One that cannot be told counts as 0, and is listed."""
        try:
            return self.number(expression)
        except NotANumber:
            self.doubt(f"the value of {shown(expression)[:60]!r} is not known; read as 0")
            return 0

    def write(self, text: str) -> int:
        """Add to what a substitution captures, and return the status of success."""
        if self.output is not None:
            self.output.append(text)
        return 0

    def run_text(self, text: str) -> int:
        """Evaluate the text of a script."""
        try:
            return self.run(parse(text))
        except ShellSyntaxError as error:
            self.doubt(str(error))
            return 1

    def source(self, name: str, arguments: list[str]) -> int:
        """Evaluate a file beside the script."""
        path = find_source(without_unknown(name), self.folder, self.script)
        script, why = None, "no such file"
        try:
            script = None if path is None else parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, ShellSyntaxError) as error:
            why = str(error)
        if path is None or script is None:
            self.doubt(f"source {shown(name)} ({why}): settings in this file are not known")
            return 1
        plain, self.script = self.script, path
        try:
            return self._call(script, arguments or self.positional)
        finally:
            self.script = plain

    def subshell(self) -> Self:
        """Return an evaluation whose assignments end with it."""
        if self.depth >= _MAX_DEPTH:
            raise InvalidInput(f"expected a script, got subshells more than {_MAX_DEPTH} deep")
        return dataclasses.replace(
            self,
            values=dict(self.values),
            associative=set(self.associative),
            functions=dict(self.functions),
            locals=None if self.locals is None else dict(self.locals),
            depth=self.depth + 1,
        )

    def start(self, argv: list[str]) -> int:
        """Evaluate a command with its arguments: a function, a builtin, or a program, which is recorded."""
        name, *arguments = argv
        if (body := self.functions.get(name)) is not None:
            hidden, self.locals = self.locals, {}
            try:
                return self._call(body, arguments)
            finally:
                self._restore(self.locals or {})
                self.locals = hidden
        if name in ("source", ".") and arguments:
            return self.source(arguments[0], arguments[1:])
        if name in ("break", "continue") and not self.num_loops:
            return 0
        if name in ("return", "break", "continue"):
            raise Leaving(name, int(arguments[0][:9]) % 256 if arguments and arguments[0].isdecimal() else 0)
        if name == "command" and arguments and arguments[0] in ("-v", "-V"):
            return BUILTINS["which"](self, arguments[1:])
        if name in STARTING and (started := list(dropwhile(lambda each: each.startswith("-"), arguments))):
            return self.start(started)
        if (builtin := BUILTINS.get(name)) is not None:
            return builtin(self, arguments)
        if (known := self.answer(tuple(argv))) is not None:
            return self.write(known)
        self.commands.append(tuple(argv))
        return 1 if self.is_condition else self.write(unknown(f"$({' '.join(argv)})"))

    def simple(self, node: Node) -> int:
        """Evaluate a command with its assignments."""
        self.line = line_of(node)
        before: Saved = {}
        argv: list[str] = []
        parts = named(node.children)
        assignments = [each for each in parts if each.type == "variable_assignment"]
        for each in parts:
            if each.type.endswith("_redirect"):
                self._redirect(each)
            elif each not in assignments:
                argv += self.fields(each.named_children[0] if each.type == "command_name" else each)
        for each in assignments:  # afterwards: the words of the command have the values from before
            name = assigned_name(each)
            before.setdefault(name, self.values.get(name))
            self.set(each)
        try:
            return self.start(argv) if argv else 0
        finally:
            self.here_document = None
            if argv:
                self._restore(before)

    def redirected(self, node: Node) -> int:
        """Evaluate a command with its here document."""
        body, *redirections = named(node.children)
        for each in redirections:
            self._redirect(each)
        status = self.run(body) if not body.type.endswith("_redirect") else 0
        self.here_document = None
        return status

    def set(self, node: Node) -> None:
        """Evaluate an assignment."""
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        is_appended = any(each.type == "+=" for each in node.children)
        if value is not None and value.type == "array":
            array = dict(self.array(text_of(target))) if is_appended else {}
            with_key = r"\[([^]]+)\]=(.*)" if text_of(target) in self.associative else r"\[(\w+)\]=(.*)"
            for element in [element for each in named(value.children) for element in self.fields(each)]:
                match = re.fullmatch(with_key, element, re.S)
                array[match[1] if match else str(len(array))] = match[2] if match else element
            return self.assign(text_of(target), array)
        text = "" if value is None else self.text(value)
        if target.type != "subscript":
            return self.assign(text_of(target), text, is_appended=is_appended)
        name, index = (text_of(target.child_by_field_name(each)) for each in ("name", "index"))
        array, key = self.array(name), self.key(name, index)
        return self.assign(name, array | {key: array.get(key, "") + text if is_appended else text})

    def _redirect(self, node: Node) -> None:
        """Keep a here document; other redirections have no effect."""
        if node.type == "herestring_redirect":
            self.here_document = self.text(node.named_children[0])
        elif node.type == "heredoc_redirect":
            parts = {each.type: text_of(each) for each in node.named_children}
            body, is_expanded = parts.get("heredoc_body", ""), not re.search(r"['\"\\]", parts["heredoc_start"])
            self.here_document = self.quoted(body.replace('"', '\\"')) if is_expanded else body
            for name, text in parts.items():
                if not name.startswith(("heredoc_", "file_")):
                    self.doubts.append(f"line {line_of(node)}: {text[:60]!r} after a here document is not understood")

    def _call(self, body: Node, arguments: list[str]) -> int:
        """Evaluate a function or a file with its arguments."""
        if self.depth >= _MAX_DEPTH:
            raise InvalidInput(f"expected a script, got calls more than {_MAX_DEPTH} deep")
        self.depth += 1
        plain, self.positional = self.positional, arguments
        try:
            return self.run(body)
        except Leaving as leaving:
            if leaving.word != "return":
                raise
            return leaving.number
        finally:
            self.depth -= 1
            self.positional = plain

    def _restore(self, saved: Saved) -> None:
        for name, value in saved.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value


def assigned_name(node: Node) -> str:
    """Return the name of the variable that an assignment changes, also if it changes one element."""
    target = node.child_by_field_name("name")
    return text_of(target.child_by_field_name("name") if target.type == "subscript" else target)
