"""Decides the conditions of a script: `[ ... ]` and `[[ ... ]]`. An unknown part of a text counts as empty."""

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from relibra.cli.recipes.shell.arithmetic import NotANumber
from relibra.cli.recipes.shell.parse import Node, ShellSyntaxError, text_of
from relibra.cli.recipes.shell.unknown import without_unknown

if TYPE_CHECKING:
    from relibra.cli.recipes.shell.words import Words

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_COMPARED = ("=", "==", "!=", "=~", "<", ">", *_NUMBERS)
_FILES = ("-f", "-d", "-e", "-r", "-x", "-s", "-w", "-L", "-h")
_UNARY = ("-z", "-n", "-v", *_FILES)
_INNER = ("test_command", "binary_expression", "unary_expression", "parenthesized_expression")


def parts_of(node: Node, words: "Words") -> list[str]:
    """Return the operands and operators of a condition in their order. The grammar does not know what binds tighter."""
    parts: list[str] = []
    end = -1
    for each in _leaves(node):
        if parts and parts[-1] in ("=", "==", "!="):
            text = words.pattern([each])
        else:
            text = text_of(each) if each.type in ("regex", "test_operator") or not each.is_named else words.text(each)
        if each.start_byte == end and text not in (")", "]") and parts[-1] not in ("(", "["):
            parts[-1] += words.pattern([each])
        else:
            parts.append(text)
        end = each.end_byte
    return [without_unknown(each) for each in parts[1:-1]]


def _leaves(node: Node) -> Iterator[Node]:
    if node.type not in _INNER:
        yield node
        return
    for each in node.children:
        yield from _leaves(each)


def holds(parts: list[str], words: "Words") -> bool:
    """Return whether a condition holds.

    Raises:
        ShellSyntaxError: the condition uses something that is not read here.
    """
    left = list(reversed(parts))
    found = bool(left) and _or(left, words)
    if left:
        raise ShellSyntaxError(f"the condition {' '.join(parts)} is not understood")
    return found


def _or(left: list[str], words: "Words") -> bool:
    found = _and(left, words)
    while left and left[-1] in ("||", "-o"):
        left.pop()
        found = _and(left, words) or found
    return found


def _and(left: list[str], words: "Words") -> bool:
    found = _primary(left, words)
    while left and left[-1] in ("&&", "-a"):
        left.pop()
        found = _primary(left, words) and found
    return found


def _primary(left: list[str], words: "Words") -> bool:
    first = left.pop() if left else ""
    if len(left) > 1 and left[-1] in _COMPARED:
        return _compared(first, left.pop(), left.pop(), words)
    if first == "!" and left:
        return not _primary(left, words)
    if first == "(":
        found = _or(left, words)
        if left:
            left.pop()
        return found
    if first not in _UNARY or not left:
        return bool(first)
    text = left.pop()
    if first in ("-z", "-n"):
        return bool(text) == (first == "-n")
    if first == "-v":
        return words.variables.text(text) is not None
    path = words.variables.folder / text
    try:
        return bool(text) and {"-f": path.is_file, "-d": path.is_dir}.get(first, path.exists)()
    except OSError:
        return False


def _compared(left: str, sign: str, right: str, words: "Words") -> bool:
    if sign in ("=", "==", "!="):
        return fnmatch.fnmatchcase(left, right) == (sign != "!=")
    if sign == "=~":
        try:
            return re.search(right, left) is not None
        except re.error as error:
            raise ShellSyntaxError(f"the condition {left} =~ {right} is not understood") from error
    if sign in ("<", ">"):
        return left < right if sign == "<" else left > right
    try:
        return _NUMBERS[sign](words.number(left), words.number(right))
    except NotANumber:
        return False
