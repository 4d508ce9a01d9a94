"""The variables of a script, and the words that they expand to: parameters, substitutions, arithmetic and fields."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from relibra.cli.recipes.shell.arithmetic import NotANumber, evaluate
from relibra.cli.recipes.shell.parse import Node, ShellSyntaxError, is_arithmetic, parse_word, text_of
from relibra.cli.recipes.shell.unknown import is_known, unknown
from relibra.errors import InvalidInput

_BRACED = re.compile(r"\$\{(#?)([A-Za-z_]\w*|[0-9]+|[@*#?])(?:\[([^]]*)\])?(?:(:?[-=?+])(.*))?\}", re.S)
_ESCAPED = re.compile(r'\\([$`"\\]|\n)')
_ALL = ("@", "*")
_BLANKS = re.compile(r"\s+")
_MAX_LETTERS = 1 << 20
"""The longest text, and the most letters and elements of an array. Doubling a variable in a loop ends here."""

Array = dict[str, str]
"""The elements by index, in order. Indices are numbers as text, or keys."""


@dataclass(slots=True)
class Words:
    """What a script has assigned, the place it is at, and what its words expand to."""

    script: Path
    folder: Path
    """The folder that `cd` has gone to."""
    values: dict[str, str | Array]
    positional: list[str] = field(default_factory=list)
    associative: set[str] = field(default_factory=set)
    """The arrays that `declare -A` named: their keys are texts, and not numbers."""

    def capture(self, node: Node) -> str:
        """Return the output of a substitution."""
        raise NotImplementedError

    def variable(self, name: str) -> str | None:
        """Return the value of a variable or positional parameter, or None if it is not set."""
        if name.isdigit() and name != "0":
            return self.positional[int(name) - 1] if int(name) <= len(self.positional) else None
        script = str(self.script)
        num_given = _counted("$#", self.positional, len(self.positional))
        known = {"0": script, "BASH_SOURCE": script, "#": num_given, "?": "0", "PWD": str(self.folder)}
        value = known.get(name, self.values.get(name))
        return next(iter(value.values()), None) if isinstance(value, dict) else value

    def array(self, name: str) -> Array:
        """Return the elements of a variable; a text has one, and a variable that is not set has none."""
        value = self.values.get(name, self.variable(name))
        return value if isinstance(value, dict) else {} if value is None else {"0": value}

    def assign(self, name: str, value: str | Array, *, is_appended: bool = False) -> None:
        """Assign a text or an array."""
        if is_appended and isinstance(value, str):
            value = (self.variable(name) or "") + value
        if (
            size := sum(len(each) + 1 for each in value.values()) if isinstance(value, dict) else len(value)
        ) > _MAX_LETTERS:
            raise InvalidInput(f"expected variables of at most {_MAX_LETTERS} letters, got {name} with {size}")
        self.values[name] = value

    def fields(self, node: Node) -> list[str]:
        """Return the fields of a word: none, one or several."""
        fields: list[str] = []
        current: str | None = None
        for parts, is_quoted in self._pieces(node, is_quoted=False):
            for number, part in enumerate(parts):
                if number and current is not None:
                    fields.append(current)
                    current = None
                # Blanks leave no empty part in the middle; other separators do.
                if part or is_quoted or 0 < number < len(parts) - 1:
                    current = (current or "") + part
        return fields if current is None else [*fields, current]

    def text(self, node: Node) -> str:
        """Return a word as one text, as in an assignment."""
        return "".join(" ".join(parts) for parts, _ in self._pieces(node, is_quoted=True))

    def pattern(self, node: Node) -> str:
        """Return a word as a pattern of `fnmatch`, in which quoted text stands for itself."""
        if node.type == "concatenation":
            return "".join(self.pattern(each) for each in node.named_children)
        return re.sub(r"([*?[])", r"[\1]" if "string" in node.type else r"\1", self.text(node))

    def quoted(self, text: str) -> str:
        """Return a text as between double quotes; its own double quotes do not count."""
        try:
            return self.text(parse_word('"' + re.sub(r'(?<!\\)"', "", text) + '"'))
        except ShellSyntaxError:
            return unknown(text)

    def number(self, expression: str) -> int:
        """Return the value of an arithmetic expression, or raise NotANumber."""
        return evaluate(self.quoted(expression), self.variable, self.assign)

    def key(self, name: str, index: str) -> str:
        """Return the key of an element of an array: a number, or a word that is no variable."""
        expanded = self._argument(index)
        if name in self.associative:
            return expanded
        try:
            is_word = expanded.isidentifier() and self.variable(expanded) is None
            return expanded if is_word else str(self.number(expanded))
        except NotANumber:
            return expanded

    def _pieces(self, node: Node, *, is_quoted: bool) -> Iterator[tuple[list[str], bool]]:
        """Yield the fields of each part of a word, and whether an empty one counts."""
        text = text_of(node)
        match node.type:
            case "word" | "extglob_pattern" | "regex":
                yield [re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))], True
            case "number" | "variable_name":
                yield [text], True
            case "raw_string":
                yield [text[1:-1]], True
            case "string":
                yield from [([""], True)] if text == '""' else self._inner(node, 1, is_quoted=True)
            case "concatenation":
                yield from self._inner(node, 0, is_quoted=is_quoted)
            case "arithmetic_expansion" | "command_substitution" if is_arithmetic(node):
                try:
                    yield [str(self.number(text[3:-2]))], True
                except NotANumber:
                    yield [unknown(text)], True
            case "command_substitution":
                yield self._divided([self.capture(node)], is_quoted=is_quoted)
            case "simple_expansion":
                parts = self._parameter(("", text[1:], "", "", ""), is_quoted=is_quoted)
                yield self._divided(parts, is_quoted=is_quoted)
            case "expansion" if (match := _BRACED.fullmatch(text)) is not None:
                yield self._divided(self._parameter(match.groups(""), is_quoted=is_quoted), is_quoted=is_quoted)
            case _:
                yield [unknown(text)], True

    def _divided(self, parts: list[str], *, is_quoted: bool) -> tuple[list[str], bool]:
        """Return the fields of an expansion, which IFS divides outside quotes, and whether an empty one counts."""
        if is_quoted:
            return parts, bool(parts)
        between = separators(self.variable("IFS"))
        return [field for part in parts for field in (between if is_known(part) else _BLANKS).split(part)], False

    def _inner(self, node: Node, num_quotes: int, *, is_quoted: bool) -> Iterator[tuple[list[str], bool]]:
        """Yield the pieces of the children of a node, and of the text between them, which is in no node."""
        whole, at = node.text[: len(node.text) - num_quotes], num_quotes
        for each in node.named_children:
            if each.type != "string_content":
                yield [_unescaped(whole[at : each.start_byte - node.start_byte])], False
                yield from self._pieces(each, is_quoted=is_quoted)
                at = each.end_byte - node.start_byte
        yield [_unescaped(whole[at:])], False

    def _parameter(self, parts: tuple[str, ...], *, is_quoted: bool) -> list[str]:
        """Return the fields of a parameter, whose parts are those of `_BRACED`."""
        length, name, index, operator, argument = parts
        if index in _ALL or name in _ALL:
            array = self.array(name)
            elements = list(self.positional if name in _ALL else array.values())
            if length:
                return [_counted(f"${{#{name}[@]}}", [*elements, *array], len(elements))]
            if operator and bool(elements) == ("+" in operator):
                return self._alternative(argument)
            return [(self.variable("IFS") or " ")[0].join(elements)] if is_quoted and "*" in (index, name) else elements
        value = self.variable(name) if not index else self.array(name).get(self.key(name, index))
        if length:
            text = unknown(f"${name}") if value is None and not name.isdigit() else value or ""
            return [_counted(f"${{#{name}}}", [text], len(text))]
        is_set = value is not None and (bool(value) or not operator.startswith(":"))
        if "+" in operator:
            return [self._argument(argument) if is_set else ""]
        if operator and operator[-1] in "-=" and not is_set:
            value = self._argument(argument)
            if "=" in operator:
                self.assign(name, value)
        # The script is called without arguments.
        return ["" if name.isdigit() else unknown(f"${name}")] if value is None else [value]

    def _alternative(self, argument: str) -> list[str]:
        """Return the fields of the word in `${name[@]+word}`."""
        try:
            return self.fields(parse_word(argument)) if argument else []
        except ShellSyntaxError:
            return [unknown(argument)]

    def _argument(self, argument: str) -> str:
        """Return the argument of an operator as text."""
        is_literal = len(argument) > 1 and argument[0] == argument[-1] == "'"
        return argument[1:-1] if is_literal else self.quoted(argument)


def _counted(source: str, counted: list[str], number: int) -> str:
    """Return a number of elements or letters, which is unknown if any of them is."""
    return str(number) if all(is_known(each) for each in counted) else unknown(source)


def _unescaped(text: bytes) -> str:
    return _ESCAPED.sub(lambda found: found[1].strip("\n"), text.decode())


def separators(of: str | None) -> re.Pattern[str]:
    """Return the pattern of what divides a text for a value of IFS; None stands for its default."""
    if of is None:
        return _BLANKS
    blank, other = ("".join(each for each in of if each.isspace() is is_blank) for is_blank in (True, False))
    blanks, others = (f"[{re.escape(each)}]" if each else "(?!)" for each in (blank, other))
    return re.compile(f"(?:{blanks})*{others}(?:{blanks})*|(?:{blanks})+")
