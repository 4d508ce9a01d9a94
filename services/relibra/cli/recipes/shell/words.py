"""Expands words of a script: parameters, substitutions, arithmetic, and the division into fields."""

import fnmatch
import re
from collections.abc import Iterator

from relibra.cli.recipes.shell.arithmetic import NotANumber, evaluate
from relibra.cli.recipes.shell.parse import Node, ShellSyntaxError, is_arithmetic, parse_word, text_of
from relibra.cli.recipes.shell.unknown import unknown
from relibra.cli.recipes.shell.variables import ALL, Variables

_BRACED = re.compile(
    r"\$\{(?P<before>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[(?P<index>[^]]*)\])?"
    r"(?P<operator>:[-=?+]|[-=?+]|##?|%%?|//?|\^\^?|,,?|:)?(?P<argument>.*)\}",
    re.S,
)
_MAX_LETTERS = 1 << 20


class Words:
    """Expands words with the variables of a script."""

    variables: Variables

    def capture(self, node: Node) -> str:
        """Return the output of a substitution."""
        raise NotImplementedError

    def fields(self, node: Node) -> list[str]:
        """Return the fields that a word becomes: none, one or several."""
        fields: list[str] = []
        current: str | None = None
        for parts, is_quoted in self._pieces(node, is_quoted=False):
            for number, part in enumerate(parts):
                if number and current is not None:
                    fields.append(current)
                    current = None
                if part or is_quoted:
                    current = (current or "") + part
        return fields if current is None else [*fields, current]

    def text(self, node: Node) -> str:
        """Return a word as one text, as in an assignment."""
        return "".join(" ".join(parts) for parts, _ in self._pieces(node, is_quoted=True))

    def pattern(self, nodes: list[Node]) -> str:
        """Return a word as a pattern of `fnmatch`, in which quoted text stands for itself."""
        found = ""
        for each in nodes:
            if each.type == "concatenation":
                found += self.pattern(each.named_children)
            else:
                text = self.text(each)
                found += re.sub(r"([*?[])", r"[\1]", text) if each.type in ("string", "raw_string") else text
        return found

    def number(self, expression: str) -> int:
        """Return the value of an arithmetic expression, or raise NotANumber."""
        return evaluate(self.quoted(expression), self.variables.text, self.variables.assign)

    def _pieces(self, node: Node, *, is_quoted: bool) -> Iterator[tuple[list[str], bool]]:
        """Yield the fields of each part of a word, and whether an empty one counts."""
        text = text_of(node)
        match node.type:
            case "word" | "extglob_pattern" | "regex":
                yield [re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))], True
            case "raw_string":
                yield [text[1:-1]], True
            case "ansi_c_string":
                yield [text[2:-1].replace("\\n", "\n").replace("\\t", "\t")], True
            case "string":
                if text == '""':
                    yield [""], True
                yield from self._inner(node, text[1:-1], start=node.start_byte + 1, is_quoted=True)
            case "concatenation":
                yield from self._inner(node, text, start=node.start_byte, is_quoted=is_quoted)
            case "simple_expansion":
                yield _divided(self._parameter("", text[1:], None, "", "", is_quoted=is_quoted), is_quoted=is_quoted)
            case "expansion" if (match := _BRACED.fullmatch(text)) is not None:
                before, name, index, operator, argument = match.groups()
                parts = self._parameter(before, name, index, operator or "", argument, is_quoted=is_quoted)
                yield _divided(parts, is_quoted=is_quoted)
            case "arithmetic_expansion" | "command_substitution" if is_arithmetic(node):
                yield [self._number_text(text[3:-2])], True
            case "command_substitution":
                yield _divided([self.capture(node)], is_quoted=is_quoted)
            case "number" | "variable_name" | "test_operator":
                yield [text], True
            case _:
                yield [unknown(text)], True

    def _inner(self, node: Node, text: str, *, start: int, is_quoted: bool) -> Iterator[tuple[list[str], bool]]:
        """Yield the pieces of the children of a node, and the text between them, which is in no node."""
        whole, at = text.encode(), 0
        for each in node.named_children:
            if each.type != "string_content":
                between = whole[at : each.start_byte - start].decode()
                yield [re.sub(r'\\([$`"\\]|\n)', lambda found: found[1].strip("\n"), between)], False
                yield from self._pieces(each, is_quoted=is_quoted)
                at = each.end_byte - start
        yield [re.sub(r'\\([$`"\\]|\n)', lambda found: found[1].strip("\n"), whole[at:].decode())], False

    def quoted(self, text: str) -> str:
        """Return a text as between double quotes; its own double quotes do not count."""
        try:
            return self.text(parse_word('"' + re.sub(r'(?<!\\)"', "", text) + '"'))
        except ShellSyntaxError:
            return unknown(text)

    def _number_text(self, text: str) -> str:
        try:
            return str(self.number(text))
        except NotANumber:
            return unknown(f"$(({text.strip()}))")

    def key(self, index: str) -> str:
        """Return the key of an element of an array: a number, or a word that is no variable."""
        expanded = self.quoted(index)
        if expanded.isidentifier() and self.variables.text(expanded) is None:
            return expanded
        return self._number_text(expanded)

    def _parameter(
        self, before: str, name: str, index: str | None, operator: str, argument: str, *, is_quoted: bool
    ) -> list[str]:
        """Return the fields of a parameter."""
        variables = self.variables
        if index in ALL or name in ALL:
            elements = list(variables.positional if name in ALL else variables.array(name).values())
            if before == "#":
                return [str(len(elements))]
            if before == "!":
                return list(variables.array(name))
            if operator == ":":
                first, _, length = argument.partition(":")
                start = max(self.number(first) - (name in ALL), 0)
                return elements[start : start + self.number(length) if length else None]
            if operator in ("+", ":+", "-", ":-"):
                return self._alternative(argument) if bool(elements) == ("+" in operator) else elements
            if operator:
                return [unknown(f"${{{name}[@]{operator}{argument}}}")]
            return (
                [(variables.text("IFS") or " ")[0].join(elements)] if is_quoted and "*" in (index, name) else elements
            )
        value = variables.text(name) if index is None else variables.array(name).get(self.key(index))
        if before == "!" and value is not None:
            value = variables.text(value)
        if before == "#":
            return [str(len(value or ""))]
        is_set = value is not None and (bool(value) or not operator.startswith(":"))
        if operator in (":+", "+"):
            return [self._argument(argument)] if is_set else [""]
        if operator in (":-", "-", ":=", "=") and not is_set:
            value = self._argument(argument)
            if operator.endswith("="):
                variables.assign(name, value)
        if value is None:
            # The script is called without arguments.
            return ["" if name.isdigit() and name != "0" else unknown(f"${name}")]
        if not operator or operator[-1] in "-=?":
            return [value]
        return [self._changed(value, operator, argument)]

    def _alternative(self, argument: str) -> list[str]:
        """Return the fields of the word in `${name[@]+word}`."""
        try:
            return self.fields(parse_word(argument)) if argument else []
        except ShellSyntaxError:
            return [unknown(argument)]

    def _argument(self, argument: str) -> str:
        """Return the argument of an operator as text."""
        if len(argument) > 1 and argument[0] == argument[-1] == "'":
            return argument[1:-1]
        return self.quoted(argument)

    def _changed(self, value: str, operator: str, argument: str) -> str:
        """Return a value after an operator that changes text."""
        if operator in ("^", "^^", ",", ",,"):
            change = str.upper if operator[0] == "^" else str.lower
            return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
        if operator == ":":
            first, _, length = argument.partition(":")
            rest = value[self.number(first) :]
            return rest[: self.number(length)] if length else rest
        if operator in ("/", "//"):
            pattern, _, replacement = self.quoted(argument).partition("/")
            if len(value) * len(replacement) > _MAX_LETTERS:
                return unknown("a long text")
            found = re.compile(fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z"))
            return found.sub(lambda _: replacement, value, count=1 if operator == "/" else 0)
        pattern, sizes = self.quoted(argument), range(len(value) + 1)
        for size in sizes if len(operator) == 1 else reversed(sizes):
            cut, rest = (
                (value[:size], value[size:])
                if operator[0] == "#"
                else (value[len(value) - size :], value[: len(value) - size])
            )
            if fnmatch.fnmatchcase(cut, pattern):
                return rest
        return value


def _divided(parts: list[str], *, is_quoted: bool) -> tuple[list[str], bool]:
    """Return the fields of an expansion, which blanks divide outside quotes."""
    if is_quoted:
        return parts, bool(parts)
    return [field for part in parts for field in (re.split(r"\s+", part))], False
