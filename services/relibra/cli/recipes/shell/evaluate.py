"""Evaluates a parsed script: assignments and control flow take effect, and commands are recorded instead of run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from relibra.cli.recipes.shell import builtins
from relibra.cli.recipes.shell.arithmetic import NotANumber
from relibra.cli.recipes.shell.conditions import decide
from relibra.cli.recipes.shell.expand import expand_fields, expand_pattern, expand_text
from relibra.cli.recipes.shell.parser import parse
from relibra.cli.recipes.shell.sources import find_source
from relibra.cli.recipes.shell.syntax import (
    Assignment,
    Calculation,
    Case,
    Chain,
    Command,
    For,
    ForCount,
    Function,
    Group,
    If,
    Pipeline,
    Sequence,
    ShellSyntaxError,
    Simple,
    Test,
    While,
    Word,
)
from relibra.cli.recipes.shell.unknown import shown, unknown, without_unknown
from relibra.cli.recipes.shell.variables import Variables
from relibra.errors import InvalidInput

_MAX_STEPS = 200_000
_MAX_DEPTH = 60
_MAX_ROUNDS = 1000
"""The rounds of a `while` after which the script goes on. Real ones wait for something that never happens here."""


@dataclass(frozen=True, slots=True)
class Started:
    """A command that the script would start."""

    line: int
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a script would do."""

    commands: tuple[Started, ...]
    missing: tuple[str, ...]
    """Files that the script reads commands from, and that are not there."""


Answer = Callable[[tuple[str, ...]], str | None]
"""Returns the output of a program that is known without running it, or None."""


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
        evaluation.run(parse(text))
    except (Leaving, RecursionError) as error:
        if isinstance(error, RecursionError):
            raise InvalidInput(f"expected a script, got {path.name}, which is nested too deeply") from error
    return Expansion(tuple(evaluation.commands), tuple(dict.fromkeys(evaluation.missing)))


class Leaving(Exception):
    """A `return`, `break` or `continue`."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


@dataclass(slots=True)
class Evaluation:
    """The evaluation of a script, or of a part of it in a subshell."""

    variables: Variables
    commands: list[Started] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    functions: dict[str, Command] = field(default_factory=dict)
    output: list[str] | None = None
    """The text that a substitution captures; None if nobody does."""
    is_condition: bool = False
    """Whether the status decides what happens next. A command that is not run counts as failed there."""
    steps: list[int] = field(default_factory=lambda: [0])
    depth: int = 0
    here_document: str | None = None
    answer: Answer = lambda _: None

    def run(self, command: Command) -> int:
        """Evaluate a command and return its status."""
        self.steps[0] += 1
        if self.steps[0] > _MAX_STEPS:
            raise InvalidInput(f"expected a script that comes to an end, got more than {_MAX_STEPS} steps")
        match command:
            case Sequence(commands=commands):
                status = 0
                for each in commands:
                    status = self.run(each)
                return status
            case Simple():
                return self._simple(command)
            case Chain(first=first, rest=rest):
                return self._chain(first, rest)
            case Pipeline(commands=commands, is_negated=is_negated):
                status = self._pipeline(commands, is_negated)
                return int(status == 0) if is_negated else status
            case If(branches=branches):
                for condition, body in branches:
                    if condition is None or self._decide(condition):
                        return self.run(body)
                return 0
            case For(name=name, words=words, body=body):
                for value in [value for word in words for value in self.fields(word)]:
                    self.variables.assign(name, value)
                    if self._loops_no_more(body):
                        break
                return 0
            case ForCount(start=start, condition=condition, step=step, body=body):
                self._calculate(start)
                while self._calculate(condition) and not self._loops_no_more(body):
                    self._calculate(step)
                return 0
            case While():
                self._loop(command)
                return 0
            case Case(subject=subject, branches=branches):
                return self._case(without_unknown(self.text(subject)), branches)
            case Test(parts=parts):
                return int(not self._test(parts))
            case Calculation(expression=expression):
                return int(not self._calculate(expression))
            case Function(name=name, body=body):
                self.functions[name] = body
                return 0
            case Group(body=body, is_subshell=is_subshell):
                return (self.subshell() if is_subshell else self).run(body)

    def fields(self, word: Word) -> list[str]:
        """Return the fields of a word."""
        return expand_fields(word, self.variables, self.capture)

    def text(self, word: Word) -> str:
        """Return a word as one text."""
        return expand_text(word, self.variables, self.capture)

    def capture(self, script: str) -> str:
        """Return the output of a script in a subshell."""
        inner = self.subshell()
        inner.output, inner.is_condition = [], False
        try:
            inner.run(parse(script))
        except Leaving:
            pass
        except ShellSyntaxError:
            return unknown(f"$({script})")
        return "".join(inner.output or ()).rstrip("\n")

    def subshell(self) -> "Evaluation":
        """Return an evaluation whose assignments end with it."""
        if self.depth >= _MAX_DEPTH:
            raise InvalidInput(f"expected a script, got subshells more than {_MAX_DEPTH} deep")
        return Evaluation(
            self.variables.copied(),
            self.commands,
            self.missing,
            dict(self.functions),
            self.output,
            self.is_condition,
            self.steps,
            self.depth + 1,
            answer=self.answer,
        )

    def call(self, argv: list[str], line: int) -> int:
        """Evaluate a command with its arguments: a function, a builtin, or a program, which is recorded."""
        name, *arguments = argv
        if (body := self.functions.get(name)) is not None:
            return self._function(body, arguments)
        if (builtin := builtins.BUILTINS.get(name)) is not None:
            return builtin(self, arguments, line)
        if (known := self.answer(tuple(argv))) is not None:
            self.write(known)
            return 0
        self.commands.append(Started(line, tuple(argv)))
        if self.is_condition:
            return 1
        self.write(unknown(f"$({' '.join(argv)})"))
        return 0

    def write(self, text: str) -> None:
        """Add to what a substitution captures."""
        if self.output is not None:
            self.output.append(text)

    def source(self, name: str, arguments: list[str], line: int) -> int:
        """Evaluate a file beside the script."""
        path = find_source(without_unknown(name), self.variables.folder, self.variables.script)
        if path is None:
            self.missing.append(f"line {line}: source {shown(name)} (no such file)")
            return 1
        if self.depth >= _MAX_DEPTH:
            raise InvalidInput(f"expected a script, got files more than {_MAX_DEPTH} deep that source each other")
        try:
            script = parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, ShellSyntaxError) as error:
            self.missing.append(f"line {line}: source {shown(name)} ({error})")
            return 1
        plain, self.variables.script = self.variables.script, path
        self.depth += 1
        try:
            with self.variables.called_with(arguments or self.variables.positional):
                return self.run(script)
        except Leaving:
            return 0
        finally:
            self.depth -= 1
            self.variables.script = plain

    def _simple(self, command: Simple) -> int:
        plain = dict(self.variables.values) if command.words and command.assignments else None
        for assignment in (*command.assignments, *command.arrays):
            self._assign(assignment)
        argv = [field for word in command.words for field in self.fields(word)]
        if command.here_document is not None:
            self.here_document = self.text(command.here_document)
        try:
            return self.call(argv, command.line) if argv else 0
        finally:
            self.here_document = None
            if plain is not None and argv:
                self.variables.values = plain

    def _assign(self, assignment: Assignment) -> None:
        if assignment.is_array:
            elements = [field for word in assignment.value if isinstance(word, tuple) for field in self.fields(word)]
            self.variables.assign_array(assignment.name, elements, is_appended=assignment.is_appended)
            return
        value = self.text(assignment.value)  # type: ignore[arg-type]  # no array
        index = assignment.index
        if index is not None and ("$" in index or index[:1] in ("'", '"')):
            from relibra.cli.recipes.shell.words import read_unquoted

            index = self.text(read_unquoted(index))
        self.variables.assign(assignment.name, value, is_appended=assignment.is_appended, index=index)

    def _function(self, body: Command, arguments: list[str]) -> int:
        if self.depth >= _MAX_DEPTH:
            raise InvalidInput(f"expected a script, got calls more than {_MAX_DEPTH} deep")
        self.depth += 1
        try:
            with self.variables.called_with(arguments):
                return self.run(body)
        except Leaving as leaving:
            if leaving.word != "return":
                raise
            return 0
        finally:
            self.depth -= 1

    def _chain(self, first: Command, rest: tuple[tuple[str, Command], ...]) -> int:
        """Evaluate `a && b || c`. All but the last command decide what happens next."""
        parts = [("", first), *rest]
        status = 0
        for number, (operator, part) in enumerate(parts):
            if (operator == "&&" and status != 0) or (operator == "||" and status == 0):
                continue
            is_last = number + 1 == len(parts)
            is_tried = not is_last and (parts[number + 1][0] == "||" or self.output is not None)
            with self._as_condition(is_tried):
                status = self.run(part)
        return status

    def _pipeline(self, commands: tuple[Command, ...], is_negated: bool) -> int:
        *before, last = commands
        for each in before:
            inner = self.subshell()
            inner.output = []
            inner.run(each)
        with self._as_condition(is_negated):
            return self.run(last)

    def _case(self, subject: str, branches: tuple[tuple[tuple[Word, ...], Sequence], ...]) -> int:
        import fnmatch

        for patterns, body in branches:
            for each in patterns:
                if fnmatch.fnmatchcase(subject, expand_pattern(each, self.variables, self.capture)):
                    return self.run(body)
        return 0

    def _test(self, parts: tuple[Word | str, ...]) -> bool:
        texts: list[str] = []
        for each in parts:
            if isinstance(each, str):
                texts.append(each)
            elif texts and texts[-1] in ("==", "=", "!="):
                texts.append(without_unknown(expand_pattern(each, self.variables, self.capture)))
            else:
                texts.append(without_unknown(self.text(each)))
        return self.decide(texts)

    def decide(self, parts: list[str]) -> bool:
        """Return whether a condition with expanded parts holds."""
        variables = self.variables
        return decide(parts, variables.number, lambda name: variables.text(name) is not None, variables.folder)

    def _calculate(self, expression: str) -> int:
        from relibra.cli.recipes.shell.words import read_quoted

        try:
            return self.variables.number(without_unknown(self.text(read_quoted(expression))))
        except NotANumber:
            return 0

    def _decide(self, condition: Command) -> bool:
        with self._as_condition(True):
            return self.run(condition) == 0

    def _loop(self, command: While) -> None:
        """Evaluate `while` or `until`. A loop that waits for a program, which never succeeds here, runs once."""
        for _ in range(_MAX_ROUNDS):
            num_commands = len(self.commands)
            is_met = self._decide(command.condition)
            waits = len(self.commands) > num_commands
            if is_met == command.is_until or self._loops_no_more(command.body) or waits:
                return

    def _loops_no_more(self, body: Command) -> bool:
        try:
            self.run(body)
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


Builtin = Callable[[Evaluation, list[str], int], int]
