"""Evaluates a parsed script: assignments and control flow take effect, and commands are recorded instead of run."""

import fnmatch
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from relibra.cli.recipes.shell import builtins
from relibra.cli.recipes.shell.commands import Answer, Commands, Leaving, assigned_name
from relibra.cli.recipes.shell.conditions import holds
from relibra.cli.recipes.shell.parse import Node, ShellSyntaxError, line_of, named, parse, text_of
from relibra.cli.recipes.shell.unknown import is_known, shown, without_unknown
from relibra.errors import InvalidInput

_MAX_STEPS = 200_000
_MAX_ROUNDS = 1000
"""The rounds of a `while` after which the script goes on. Real ones wait for something that never happens here."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a script would do."""

    commands: tuple[tuple[str, ...], ...]
    """The words of the commands that it would start."""
    doubts: tuple[str, ...]
    """Parts that were not read: files that are not there, and what is not understood."""
    choices: Mapping[str, int]
    """The lines of conditions that depend on the outside, by the doubt about each."""


def expand_script(
    path: Path,
    text: str,
    given: dict[str, str],
    answer: Answer = lambda _: None,
    otherwise: frozenset[int] = frozenset(),
) -> Expansion:
    """Return the commands that a script would start.

    Args:
        path: where the script is, so that files beside it are found.
        text: its content.
        given: variables that the environment sets.
        answer: gives the output of programs that are known without running them.
        otherwise: the lines of conditions that depend on the outside and are read the other way round.

    Raises:
        InvalidInput: the script is no bash, or does not come to an end.
    """
    folder = path.absolute().parent
    evaluation = Evaluation(path.absolute(), folder, dict(given), answer=answer, otherwise=otherwise)
    try:
        with suppress(Leaving):
            evaluation.run(parse(text))
    except RecursionError as error:
        raise InvalidInput(f"expected a script, got {path.name}, which is nested too deeply") from error
    doubts = tuple(dict.fromkeys(evaluation.doubts))
    return Expansion(tuple(evaluation.commands), doubts, evaluation.choices)


@dataclass(slots=True)
class Evaluation(Commands):
    """The evaluation of a script."""

    steps: list[int] = field(default_factory=lambda: [0])

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
                return self.simple(node)
            case "redirected_statement":
                return self.redirected(node)
            case "compound_statement" if text_of(node.children[0]) == "((":
                return int(not self._calculate(node))
            case "program" | "variable_assignments" | "compound_statement" | "do_group":
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
                return int(self._decide(node.children))
            case "test_command":
                return self._tested(node)
            case "if_statement":
                return self._if(node)
            case "case_statement":
                return self._case(node)
            case "variable_assignment":
                self.set(node)
            case "declaration_command":
                self._declare(node)
            case "unset_command":
                for each in named(node.children):
                    self.values.pop(text_of(each), None)
            case "for_statement":
                for value in [text for each in node.children_by_field_name("value") for text in self.fields(each)]:
                    self.assign(text_of(node.child_by_field_name("variable")), value)
                    if self._ends_loop(node):
                        break
            case "c_style_for_statement":
                start, condition, update = (
                    node.child_by_field_name(each) for each in ("initializer", "condition", "update")
                )
                self._calculate(start)
                while (condition is None or self._calculate(condition)) and not self._ends_loop(node):
                    self._calculate(update)
            case "while_statement":
                self._while(node)
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

    def _list(self, node: Node) -> int:
        """Evaluate `a && b || c`. All but the last command decide what happens next."""
        parts: list[tuple[str, Node]] = []
        while node.type == "list":
            node, operator, right = (each for each in node.children if each.type != "comment")
            parts.insert(0, (operator.type, right))
        status = self._part(node, parts[0][0])
        for (operator, part), after in zip(parts, [*(operator for operator, _ in parts[1:]), ""], strict=True):
            if (operator == "&&") == (status == 0):
                status = self._part(part, after)
        return status

    def _part(self, node: Node, operator: str) -> int:
        with self._as_condition(operator == "||" or (operator == "&&" and self.output is not None)):
            return self.run(node)

    def _tested(self, node: Node) -> int:
        self.line = line_of(node)
        try:
            return int(not holds(node, self))
        except ShellSyntaxError as error:
            self.doubt(str(error))
            return 1

    def _calculate(self, node: Node | None) -> int:
        if node is None:
            return 0
        self.line = line_of(node)
        return self.calculate(text_of(node).removeprefix("((").removesuffix("))"))

    def _declare(self, node: Node) -> None:
        """Evaluate `declare` and its kin. What a function declares ends with it, except by `export` and `-g`."""
        parts = named(node.children)
        flags = "".join(text_of(each) for each in parts if text_of(each).startswith("-"))
        is_local = text_of(node.children[0]) in ("local", "declare", "typeset") and "g" not in flags
        for each in parts:
            is_assignment = each.type == "variable_assignment"
            for word in [assigned_name(each)] if is_assignment else self.fields(each):
                name = word.partition("=")[0]
                if name.isidentifier():
                    if self.locals is not None and is_local and name not in self.locals:
                        self.locals[name] = self.values.get(name)
                        if not is_assignment and "=" not in word:
                            self.assign(name, {} if "a" in flags.lower() else "")
                    if "A" in flags:
                        self.associative.add(name)
                if is_assignment:
                    self.set(each)
                else:
                    builtins.declare(self, [word])

    def _if(self, node: Node) -> int:
        others = [each for each in node.children if each.type in ("elif_clause", "else_clause")]
        for branch in (node, *others):
            then = next((number for number, each in enumerate(branch.children) if each.type == "then"), 0)
            if branch.type == "else_clause" or self._decide(branch.children[:then]):
                return self.run_all([each for each in branch.children[then:] if each not in others])
        return 0

    def _decide(self, condition: list[Node]) -> bool:
        with self._as_condition(True):
            return self.run_all(condition) == 0

    def _case(self, node: Node) -> int:
        text = self.text(node.child_by_field_name("value"))
        subject = without_unknown(text)
        if not is_known(text):
            self.line = line_of(node)
            self.doubt(f"the case depends on {shown(text)[:60]}, which is not known; read as {subject[:60]!r}")
        for each in node.children:
            patterns = each.children_by_field_name("value") if each.type == "case_item" else []
            if any(fnmatch.fnmatchcase(subject, self.pattern(pattern)) for pattern in patterns):
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
        self.num_loops += 1
        try:
            self.run(node.child_by_field_name("body"))
        except Leaving as leaving:
            if leaving.word == "return":
                raise
            if leaving.number > 1 and self.num_loops > 1:
                leaving.number -= 1
                raise
            return leaving.word == "break"
        finally:
            self.num_loops -= 1
        return False

    @contextmanager
    def _as_condition(self, is_condition: bool) -> Iterator[None]:
        plain, self.is_condition = self.is_condition, is_condition or self.is_condition
        try:
            yield
        finally:
            self.is_condition = plain
