"""Decides the conditions of a script: `[ ... ]` and `[[ ... ]]`. An unknown part counts as empty, and is listed."""

import fnmatch
import operator
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from relibra.cli.recipes.shell.arithmetic import NotANumber
from relibra.cli.recipes.shell.parse import Node, ShellSyntaxError, text_of
from relibra.cli.recipes.shell.unknown import is_known, shown, without_unknown

if TYPE_CHECKING:
    from relibra.cli.recipes.shell.commands import Commands

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    f"-{each.__name__}": each for each in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
}
PATTERNS = ("=", "==", "!=")
_FILES = ("-f", "-d", "-e", "-r", "-x", "-s", "-w")
_INNER = ("test_command", "binary_expression", "unary_expression", "parenthesized_expression")


def holds(node: Node, words: "Commands") -> bool:
    """Return whether a condition holds.

    Raises:
        ShellSyntaxError: the condition uses something that is not read here.
    """
    return decided(_parts(node, words), text_of(node), words)


def decided(parts: list[str], text: str, words: "Commands") -> bool:
    """Return whether the operands and operators of a condition hold.

    Raises:
        ShellSyntaxError: the condition, whose text is given for people, uses something that is not read here.
    """
    left = [without_unknown(each) for each in reversed(parts)]
    found = bool(left) and _any(left, words)
    if left:
        raise ShellSyntaxError(f"the condition {text} is not understood")
    if sources := ", ".join(shown(each) for each in parts if not is_known(each)):
        found = found != (words.line in words.otherwise)
        words.doubt(f"{text[:60]} depends on {sources[:60]}, which is not known; read as {str(found).lower()}")
        words.choices[words.doubts[-1]] = words.line
    return found


def _parts(node: Node, words: "Commands") -> list[str]:
    """Return the operands and operators in their order, because the grammar does not know what binds tighter."""
    parts: list[str] = []
    end = -1
    for each in list(_leaves(node))[1:-1]:
        is_operator = not each.is_named or each.type in ("regex", "test_operator")
        is_pattern = each.start_byte == end or parts[-1:] in [[sign] for sign in PATTERNS]
        text = text_of(each) if is_operator else words.pattern(each) if is_pattern else words.text(each)
        if each.start_byte == end and not is_operator and parts[-1] not in ("(", "!"):
            parts[-1] += text
        else:
            parts.append(text)
        end = each.end_byte
    return parts


def _leaves(node: Node) -> Iterator[Node]:
    if node.type == "comment":
        return
    if node.type not in _INNER:
        yield node
        return
    for each in node.children:
        yield from _leaves(each)


def _any(left: list[str], words: "Commands") -> bool:
    found = _all(left, words)
    while left and left[-1] in ("||", "-o"):
        left.pop()
        found = _all(left, words) or found
    return found


def _all(left: list[str], words: "Commands") -> bool:
    found = _one(left, words)
    while left and left[-1] in ("&&", "-a"):
        left.pop()
        found = _one(left, words) and found
    return found


def _one(left: list[str], words: "Commands") -> bool:
    first = left.pop() if left else ""
    if len(left) > 1 and (left[-1] in (*PATTERNS, "=~", "<", ">") or left[-1] in _NUMBERS):
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


def _compared(left: str, sign: str, right: str, words: "Commands") -> bool:
    if sign in PATTERNS:
        return fnmatch.fnmatchcase(left, right) == (sign != "!=")
    if sign in ("<", ">"):
        return left < right if sign == "<" else left > right
    try:
        if sign == "=~":
            return re.search(right, left) is not None
        # Unlike in arithmetic, leading zeros of a plain number mean nothing in `[ ... ]`.
        one, other = (int(each) if each.isdecimal() else words.number(each) for each in (left, right))
        return _NUMBERS[sign](one, other)
    except re.error as error:
        raise ShellSyntaxError(f"the condition {left} =~ {right} is not understood") from error
    except NotANumber:
        words.doubt(f"{left} {sign} {right} is not known; read as false"[:120])
        return False
