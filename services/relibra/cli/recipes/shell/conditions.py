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
    f"-{each.__name__}": each for each in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
}
_PATTERNS = ("=", "==", "!=")
_FILES = ("-f", "-d", "-e", "-r", "-x", "-s", "-w")
_INNER = ("test_command", "binary_expression", "unary_expression", "parenthesized_expression")


def holds(node: Node, words: "Words") -> bool:
    """Return whether a condition holds.

    Raises:
        ShellSyntaxError: the condition uses something that is not read here.
    """
    left = _parts(node, words)[::-1]
    found = bool(left) and _any(left, words)
    if left:
        raise ShellSyntaxError(f"the condition {text_of(node)} is not understood")
    return found


def _parts(node: Node, words: "Words") -> list[str]:
    """Return the operands and operators in their order, because the grammar does not know what binds tighter."""
    parts: list[str] = []
    end = -1
    for each in list(_leaves(node))[1:-1]:
        is_operator = not each.is_named or each.type in ("regex", "test_operator")
        is_pattern = each.start_byte == end or parts[-1:] in [[sign] for sign in _PATTERNS]
        text = text_of(each) if is_operator else words.pattern(each) if is_pattern else words.text(each)
        if each.start_byte == end and not is_operator and parts[-1] not in ("(", "!"):
            parts[-1] += without_unknown(text)
        else:
            parts.append(without_unknown(text))
        end = each.end_byte
    return parts


def _leaves(node: Node) -> Iterator[Node]:
    if node.type not in _INNER:
        yield node
        return
    for each in node.children:
        yield from _leaves(each)


def _any(left: list[str], words: "Words") -> bool:
    found = _all(left, words)
    while left and left[-1] in ("||", "-o"):
        left.pop()
        found = _all(left, words) or found
    return found


def _all(left: list[str], words: "Words") -> bool:
    found = _one(left, words)
    while left and left[-1] in ("&&", "-a"):
        left.pop()
        found = _one(left, words) and found
    return found


def _one(left: list[str], words: "Words") -> bool:
    first = left.pop() if left else ""
    if len(left) > 1 and (left[-1] in (*_PATTERNS, "=~", "<", ">") or left[-1] in _NUMBERS):
        return _compared(first, left.pop(), left.pop(), words)
    if first == "!" and left:
        return not _one(left, words)
    if first == "(" and left:
        found = _any(left, words)
        return bool(left and left.pop()) and found
    if first in ("-z", "-n") and left:
        return bool(left.pop()) == (first == "-n")
    if first in _FILES and left:
        path = words.folder / (text := left.pop())
        return bool(text) and {"-f": path.is_file, "-d": path.is_dir}.get(first, path.exists)()
    return bool(first)


def _compared(left: str, sign: str, right: str, words: "Words") -> bool:
    if sign in _PATTERNS:
        return fnmatch.fnmatchcase(left, right) == (sign != "!=")
    if sign in ("<", ">"):
        return left < right if sign == "<" else left > right
    try:
        if sign == "=~":
            return re.search(right, left) is not None
        return _NUMBERS[sign](words.number(left), words.number(right))
    except re.error as error:
        raise ShellSyntaxError(f"the condition {left} =~ {right} is not understood") from error
    except NotANumber:
        return False
