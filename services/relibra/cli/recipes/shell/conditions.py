"""Decides the conditions of a script: `[ ... ]` and `[[ ... ]]`. An unknown part of a text counts as empty."""

import fnmatch
import re
from collections.abc import Callable
from pathlib import Path

from relibra.cli.recipes.shell.arithmetic import NotANumber

_UNARY = ("-z", "-n", "-f", "-d", "-e", "-r", "-x", "-s", "-v", "-w", "-L", "-h", "-o", "-t")
_BINARY = ("=", "==", "!=", "=~", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "<", ">", "-nt", "-ot", "-ef")


def decide(parts: list[str], number: Callable[[str], int], is_set: Callable[[str], bool], folder: Path) -> bool:
    """Return whether a condition holds.

    Args:
        parts: operands and operators; right sides of `==` and `!=` are patterns, right sides of `=~` expressions.
        number: returns the value of an arithmetic expression, or raises NotANumber.
        is_set: returns whether a variable is set.
        folder: where relative paths start.
    """
    return _Decision(parts, number, is_set, folder).value()


class _Decision:
    def __init__(
        self, parts: list[str], number: Callable[[str], int], is_set: Callable[[str], bool], folder: Path
    ) -> None:
        self._parts, self._number, self._is_set, self._folder = parts, number, is_set, folder
        self._at = 0

    def value(self) -> bool:
        return bool(self._parts) and self._or()

    def _peek(self, offset: int = 0) -> str | None:
        at = self._at + offset
        return self._parts[at] if at < len(self._parts) else None

    def _or(self) -> bool:
        found = self._and()
        while self._peek() in ("||", "-o"):
            self._at += 1
            found = self._and() or found
        return found

    def _and(self) -> bool:
        found = self._not()
        while self._peek() in ("&&", "-a"):
            self._at += 1
            found = self._not() and found
        return found

    def _not(self) -> bool:
        if self._peek() == "!" and self._peek(1) is not None:
            self._at += 1
            return not self._not()
        if self._peek() == "(" and self._peek(1) not in _BINARY:
            self._at += 1
            found = self._or()
            self._at += 1
            return found
        return self._primary()

    def _primary(self) -> bool:
        left = self._peek() or ""
        operator = self._peek(1)
        if operator in _BINARY and self._peek(2) is not None:
            right = self._peek(2) or ""
            self._at += 3
            return self._compared(left, operator or "", right)
        if left in _UNARY and operator is not None and operator not in ("&&", "||", "-a", ")"):
            self._at += 2
            return self._unary(left, operator)
        self._at += 1
        return bool(left)

    def _unary(self, operator: str, operand: str) -> bool:
        if operator == "-z":
            return not operand
        if operator == "-n":
            return bool(operand)
        if operator == "-v":
            return self._is_set(operand)
        if operator in ("-o", "-t") or not operand:
            return False
        path = self._folder / operand
        try:
            return {"-f": path.is_file, "-d": path.is_dir, "-L": path.is_symlink, "-h": path.is_symlink}.get(
                operator, path.exists
            )()
        except OSError:
            return False

    def _compared(self, left: str, operator: str, right: str) -> bool:
        if operator in ("=", "=="):
            return fnmatch.fnmatchcase(left, right)
        if operator == "!=":
            return not fnmatch.fnmatchcase(left, right)
        if operator == "=~":
            try:
                return re.search(right, left) is not None
            except re.error:
                return False
        if operator in ("<", ">"):
            return left < right if operator == "<" else left > right
        try:
            one, other = self._number(left), self._number(right)
        except NotANumber:
            return False
        return {
            "-eq": one == other,
            "-ne": one != other,
            "-lt": one < other,
            "-le": one <= other,
            "-gt": one > other,
            "-ge": one >= other,
        }.get(operator, False)
