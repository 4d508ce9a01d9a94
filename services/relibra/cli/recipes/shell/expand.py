"""Expands words of a script: parameters, substitutions, arithmetic, and the division into fields."""

import fnmatch
import re

from relibra.cli.recipes.shell.syntax import Arithmetic, Parameter, Segment, Substitution, Text, Word
from relibra.cli.recipes.shell.unknown import is_known, shown, unknown
from relibra.cli.recipes.shell.variables import Capture, Variables
from relibra.cli.recipes.shell.words import read_quoted

_ALL = ("@", "*")
_MAX_LETTERS = 1 << 20


def expand_fields(word: Word, variables: Variables, capture: Capture) -> list[str]:
    """Return the fields that a word becomes: none, one or several."""
    fields: list[str] = []
    current: str | None = None
    for segment in word:
        parts = _parts(segment, variables, capture)
        if parts is None:
            parts = [_text(segment, variables, capture)]
            if not segment.is_quoted and not isinstance(segment, Text):
                text = parts[0]
                parts = text.split() if is_known(text) else [text]
                if text[:1].isspace() and current is not None:
                    fields.append(current)
                    current = None
        for number, part in enumerate(parts):
            if number and current is not None:
                fields.append(current)
                current = None
            current = (current or "") + part
    if current is not None:
        fields.append(current)
    return fields


def expand_text(word: Word, variables: Variables, capture: Capture) -> str:
    """Return a word as one text, as in an assignment."""
    return "".join(
        " ".join(parts) if (parts := _parts(each, variables, capture)) is not None else _text(each, variables, capture)
        for each in word
    )


def expand_pattern(word: Word, variables: Variables, capture: Capture) -> str:
    """Return a word as a pattern of `fnmatch`, in which quoted text stands for itself."""
    return "".join(
        re.sub(r"([*?[])", r"[\1]", text) if each.is_quoted else text
        for each in word
        for text in [_text(each, variables, capture)]
    )


def _parts(segment: Segment, variables: Variables, capture: Capture) -> list[str] | None:
    """Return the elements if the segment stands for all elements of an array, else None."""
    if not isinstance(segment, Parameter) or segment.operator == "length":
        return None
    if segment.index in _ALL:
        if segment.operator == "indirect":
            return list(variables.array(segment.name))
        elements = list(variables.array(segment.name).values())
    elif segment.name in _ALL:
        elements = list(variables.positional)
    else:
        return None
    if segment.operator in ("-", ":-") and not elements:
        return [each for each in [_word(segment.argument, variables, capture)] if each]
    if segment.operator in ("+", ":+"):
        return expand_fields(_alternative(segment), variables, capture) if elements else []
    if segment.operator == ":":
        start, _, length = segment.argument.partition(":")
        first = variables.number(_word(start, variables, capture)) - (1 if segment.name in _ALL else 0)
        last = first + variables.number(_word(length, variables, capture)) if length else None
        return elements[max(first, 0) : last]
    if "*" in (segment.index, segment.name) and segment.is_quoted:
        return [(variables.text("IFS") or " ")[:1].join(elements)]
    return elements


def _alternative(segment: Parameter) -> Word:
    """Return the word of `${name[@]+word}`, whose own quotes count."""
    from relibra.cli.recipes.shell.words import read_unquoted

    return read_unquoted(segment.argument)


def _word(text: str, variables: Variables, capture: Capture) -> str:
    """Expand the argument of an operator."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        if text[0] == "'":
            return text[1:-1]
        text = text[1:-1]
    return expand_text(read_quoted(text), variables, capture)


def _text(segment: Segment, variables: Variables, capture: Capture) -> str:
    match segment:
        case Text(text=text):
            return text
        case Substitution(script=script):
            return capture(script)
        case Arithmetic(expression=expression):
            return _calculated(expression, variables, capture)
        case Parameter():
            return _parameter(segment, variables, capture)


def _calculated(expression: str, variables: Variables, capture: Capture) -> str:
    expanded = expand_text(read_quoted(expression), variables, capture)
    return variables.number_text(expanded) if is_known(expanded) else unknown(f"$(({shown(expanded)}))")


def _parameter(segment: Parameter, variables: Variables, capture: Capture) -> str:
    operator, name = segment.operator, segment.name
    if operator == "length":
        if segment.index in _ALL:
            return str(len(variables.array(name)))
        return str(len(variables.positional if name in _ALL else variables.text(name) or ""))
    value = variables.text(name)
    if segment.index is not None:
        index = _word(segment.index, variables, capture)
        elements = variables.array(name)
        value = elements.get(index)
        if value is None and name not in variables.keyed:
            value = elements.get(variables.number_text(index))
    if operator == "indirect" and value is not None:
        name, value = value, variables.text(value)
    if operator in (":-", "-", ":=", "="):
        if value is None or (not value and operator[0] == ":"):
            value = _word(segment.argument, variables, capture)
            if operator.endswith("="):
                variables.assign(name, value)
        return value
    if operator in (":+", "+"):
        is_set = value is not None and (bool(value) or operator == "+")
        return _word(segment.argument, variables, capture) if is_set else ""
    if value is None:
        # A word of all arguments is empty, as when the script is called without any.
        return "" if name in _ALL or (name.isdigit() and name != "0") else unknown(f"${name}")
    if not operator or operator in (":?", "?", "indirect"):
        return value
    return _changed(value, operator, _word(segment.argument, variables, capture), variables)


def _changed(value: str, operator: str, argument: str, variables: Variables) -> str:
    """Return a value after an operator that changes text."""
    if operator == ":":
        start, _, length = argument.partition(":")
        first = variables.number(start)
        rest = value[first:] if first >= 0 else value[max(len(value) + first, 0) :]
        return rest[: variables.number(length)] if length else rest
    if operator in ("^", "^^", ",", ",,"):
        change = str.upper if operator[0] == "^" else str.lower
        return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
    if operator in ("/", "//"):
        pattern, _, replacement = argument.partition("/")
        if len(value) * len(replacement) > _MAX_LETTERS:
            return unknown("a long text")
        found = re.compile(fnmatch.translate(pattern).removesuffix(r"\Z").removesuffix(r"\z"))
        return found.sub(lambda _: replacement, value, count=1 if operator == "/" else 0)
    if operator in ("#", "##", "%", "%%"):
        return _trimmed(value, operator, argument)
    return value


def _trimmed(value: str, operator: str, pattern: str) -> str:
    """Return a value without the shortest or longest beginning or end that fits a pattern."""
    sizes = range(len(value) + 1) if len(operator) == 1 else range(len(value), -1, -1)
    for size in sizes:
        cut = value[:size] if operator[0] == "#" else value[len(value) - size :]
        if fnmatch.fnmatchcase(cut, pattern):
            return value[size:] if operator[0] == "#" else value[: len(value) - size]
    return value
