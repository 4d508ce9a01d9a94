"""Reads one word of a bash script into its segments."""

import re

from relibra.cli.recipes.shell.syntax import (
    Arithmetic,
    Parameter,
    Segment,
    ShellSyntaxError,
    Substitution,
    Text,
    Word,
)

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(
    r"(?P<before>[#!]?)(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])(?:\[(?P<index>[^]]*)\])?(?P<rest>.*)", re.S
)
_OPERATOR = re.compile(r":-|:=|:\?|:\+|-|=|\?|\+|##|#|%%|%|//|/|\^\^|\^|,,|,|:|@")
_END = frozenset(" \t\n;&|()<>")


def read_word(text: str, at: int) -> tuple[Word, int]:
    """Return the word at a position, and the position after it.

    Raises:
        ShellSyntaxError: a quote or bracket is not closed.
    """
    segments: list[Segment] = []
    while at < len(text) and text[at] not in _END:
        at = _read_segment(text, at, segments, is_quoted=False)
    return tuple(segments), at


def read_quoted(text: str) -> Word:
    """Return a whole text as a word in double quotes."""
    segments: list[Segment] = []
    at = 0
    while at < len(text):
        at = _read_segment(text, at, segments, is_quoted=True)
    return tuple(segments)


def read_unquoted(text: str) -> Word:
    """Return a whole text as one word without quotes around it, even with blanks in it."""
    segments: list[Segment] = []
    at = 0
    while at < len(text):
        at = _read_segment(text, at, segments, is_quoted=False)
    return tuple(segments)


def literal(word: Word) -> str | None:
    """Return the text of a word without expansions, or None if it has some or is quoted."""
    if all(isinstance(each, Text) and not each.is_quoted for each in word):
        return "".join(each.text for each in word if isinstance(each, Text))
    return None


def _read_segment(text: str, at: int, segments: list[Segment], *, is_quoted: bool) -> int:
    """Add the segment at a position, and return the position after it."""
    here = text[at]
    if here == "\\":
        after = text[at + 1 : at + 2]
        if after == "\n":
            return at + 2
        if is_quoted and after not in ("$", "`", '"', "\\"):
            segments.append(Text("\\", True))
            return at + 1
        segments.append(Text(after, True))
        return at + 2
    if here == "'" and not is_quoted:
        end = _closing(text, at, text.find("'", at + 1))
        segments.append(Text(text[at + 1 : end], True))
        return end + 1
    if here == '"' and not is_quoted:
        end = end_of_quotes(text, at)
        inner = read_quoted(text[at + 1 : end])
        segments.extend(inner or (Text("", True),))
        return end + 1
    if here == "`":
        end = _closing(text, at, text.find("`", at + 1))
        segments.append(Substitution(text[at + 1 : end], is_quoted))
        return end + 1
    if here == "$":
        return _read_expansion(text, at, segments, is_quoted=is_quoted)
    segments.append(Text(here, is_quoted))
    return at + 1


def _read_expansion(text: str, at: int, segments: list[Segment], *, is_quoted: bool) -> int:
    if text.startswith("$((", at):
        end = end_of_brackets(text, at + 1)
        if text[end - 1] == ")":
            segments.append(Arithmetic(text[at + 3 : end - 1], is_quoted))
            return end + 1
    if text.startswith("$(", at):
        end = end_of_brackets(text, at + 1)
        segments.append(Substitution(text[at + 2 : end], is_quoted))
        return end + 1
    if text.startswith("${", at):
        end = end_of_brackets(text, at + 1)
        segments.append(_braced(text[at + 2 : end], is_quoted=is_quoted, line=line_of(text, at)))
        return end + 1
    if text.startswith("$'", at) and not is_quoted:
        end = _closing(text, at, text.find("'", at + 2))
        segments.append(Text(text[at + 2 : end].replace("\\n", "\n").replace("\\t", "\t"), True))
        return end + 1
    if (name := _NAME.match(text, at + 1)) is not None:
        segments.append(Parameter(name.group(), is_quoted))
        return name.end()
    segments.append(Text("$", is_quoted))
    return at + 1


def _braced(inner: str, *, is_quoted: bool, line: int) -> Parameter:
    match = _BRACED.fullmatch(inner)
    if match is None:
        raise ShellSyntaxError(f"line {line}: expected ${{name}}, got ${{{inner}}}")
    operator, argument = "", ""
    if match["rest"]:
        found = _OPERATOR.match(match["rest"])
        if found is None:
            raise ShellSyntaxError(f"line {line}: expected ${{name}} with an operator, got ${{{inner}}}")
        operator, argument = found.group(), match["rest"][found.end() :]
    if match["before"] == "#":
        operator = "length"
    elif match["before"] == "!":
        operator = "indirect"
    return Parameter(match["name"], is_quoted, operator, argument, match["index"])


def end_of_quotes(text: str, at: int) -> int:
    """Return the position of the double quote that closes the one at `at`."""
    here = at + 1
    while here < len(text):
        if text[here] == '"':
            return here
        if text[here] == "\\":
            here += 2
        elif text.startswith(("$(", "${"), here):
            here = end_of_brackets(text, here + 1) + 1
        elif text[here] == "`":
            here = _closing(text, here, text.find("`", here + 1)) + 1
        else:
            here += 1
    raise ShellSyntaxError(f"line {line_of(text, at)}: a double quote is not closed")


def end_of_brackets(text: str, at: int) -> int:
    """Return the position of the bracket that closes the one at `at`."""
    opening = text[at]
    closing = {"(": ")", "{": "}"}[opening]
    depth, here = 0, at
    while here < len(text):
        letter = text[here]
        if letter == "\\":
            here += 1
        elif letter == "'":
            here = _closing(text, here, text.find("'", here + 1))
        elif letter == '"':
            here = end_of_quotes(text, here)
        elif letter == "#" and opening == "(" and text[here - 1] in " \t\n":
            end = text.find("\n", here)
            here = len(text) if end < 0 else end
        elif letter == opening:
            depth += 1
        elif letter == closing:
            depth -= 1
            if depth == 0:
                return here
        here += 1
    raise ShellSyntaxError(f"line {line_of(text, at)}: a bracket {opening} is not closed")


def _closing(text: str, opening: int, at: int) -> int:
    if at < 0:
        raise ShellSyntaxError(f"line {line_of(text, opening)}: a quote is not closed")
    return at


def line_of(text: str, at: int) -> int:
    """Return the number of the line of a position, from 1."""
    return text.count("\n", 0, at) + 1
