"""Evaluates bash arithmetic: integers, variables, assignments and the operators of C."""

import re
from collections.abc import Callable

from relibra.errors import InvalidInput

_TOKEN = re.compile(
    r"\s*(0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*|\*\*|<<|>>|<=|>=|==|!=|&&|\|\||\+\+|--|[-+*/%]=|[-+*/%<>=!~&|^?:(),])"
)
_BINARY = tuple(
    tuple(level.split()) for level in ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %", "**")
)
"""Operators from the loosest to the tightest."""


class NotANumber(InvalidInput):
    """An expression whose value cannot be told."""


def evaluate(expression: str, get: Callable[[str], str], put: Callable[[str, str], None]) -> int:
    """Return the value of an expression; an empty one is 0.

    Args:
        expression: the text between the brackets, with `$name` already expanded.
        get: returns the value of a variable, or an empty string.
        put: assigns a variable.

    Raises:
        NotANumber: the expression is no arithmetic, or divides by zero.
    """
    return _Evaluation(expression, get, put).value()


class _Evaluation:
    def __init__(self, expression: str, get: Callable[[str], str], put: Callable[[str, str], None]) -> None:
        self._expression, self._get, self._put = expression, get, put
        self._tokens: list[str] = []
        at = 0
        while expression[at:].strip():
            match = _TOKEN.match(expression, at)
            if match is None:
                raise self._error()
            self._tokens.append(match[1])
            at = match.end()
        self._at = 0

    def value(self) -> int:
        if not self._tokens:
            return 0
        found = self._comma()
        if self._at < len(self._tokens):
            raise self._error()
        return found

    def _error(self) -> NotANumber:
        return NotANumber(f"expected arithmetic, got {self._expression!r}")

    def _peek(self, offset: int = 0) -> str:
        at = self._at + offset
        return self._tokens[at] if at < len(self._tokens) else ""

    def _take(self, *tokens: str) -> str:
        if self._peek() in tokens and self._peek():
            self._at += 1
            return self._tokens[self._at - 1]
        return ""

    def _comma(self) -> int:
        found = self._assignment()
        while self._take(","):
            found = self._assignment()
        return found

    def _assignment(self) -> int:
        name, operator = self._peek(), self._peek(1)
        if name.isidentifier() and operator in ("=", "+=", "-=", "*=", "/=", "%="):
            self._at += 2
            right = self._assignment()
            found = right if operator == "=" else self._apply(operator[0], self._number(name), right)
            self._put(name, str(found))
            return found
        condition = self._binary(0)
        if not self._take("?"):
            return condition
        yes = self._assignment()
        if not self._take(":"):
            raise self._error()
        no = self._assignment()
        return yes if condition else no

    def _binary(self, level: int) -> int:
        if level == len(_BINARY):
            return self._unary()
        found = self._binary(level + 1)
        while operator := self._take(*_BINARY[level]):
            found = self._apply(operator, found, self._binary(level + 1))
        return found

    def _unary(self) -> int:
        if sign := self._take("++", "--"):
            return self._step(self._name(), 1 if sign == "++" else -1)
        if sign := self._take("-", "+", "!", "~"):
            inner = self._unary()
            return {"-": -inner, "+": inner, "!": int(not inner), "~": ~inner}[sign]
        if self._take("("):
            found = self._comma()
            if not self._take(")"):
                raise self._error()
            return found
        token = self._peek()
        if token.isidentifier():
            name = self._name()
            if sign := self._take("++", "--"):
                step = 1 if sign == "++" else -1
                return self._step(name, step) - step
            return self._number(name)
        try:
            found = int(token, 0) if token[:2].lower() == "0x" else int(token)
        except ValueError:
            raise self._error() from None
        self._at += 1
        return found

    def _name(self) -> str:
        name = self._peek()
        if not name.isidentifier():
            raise self._error()
        self._at += 1
        return name

    def _step(self, name: str, step: int) -> int:
        found = self._number(name) + step
        self._put(name, str(found))
        return found

    def _number(self, name: str) -> int:
        text = self._get(name).strip()
        if not text:
            return 0
        try:
            return int(text, 0) if text[:2].lower() == "0x" else int(text)
        except ValueError:
            raise NotANumber(f"expected {name} to be a number, got {text!r}") from None

    def _apply(self, operator: str, left: int, right: int) -> int:
        if operator in ("/", "%") and right == 0:
            raise NotANumber(f"division by zero in {self._expression!r}")
        if operator in ("**", "<<", ">>") and not 0 <= right <= 256:
            raise NotANumber(f"a number too large in {self._expression!r}")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1) if operator in ("/", "%") else 0
        remainder = left - quotient * right
        apply: dict[str, Callable[[], int]] = {
            "||": lambda: int(bool(left) or bool(right)),
            "&&": lambda: int(bool(left) and bool(right)),
            "|": lambda: left | right,
            "^": lambda: left ^ right,
            "&": lambda: left & right,
            "==": lambda: int(left == right),
            "!=": lambda: int(left != right),
            "<": lambda: int(left < right),
            "<=": lambda: int(left <= right),
            ">": lambda: int(left > right),
            ">=": lambda: int(left >= right),
            "<<": lambda: left << right,
            ">>": lambda: left >> right,
            "+": lambda: left + right,
            "-": lambda: left - right,
            "*": lambda: left * right,
            "/": lambda: quotient,
            "%": lambda: remainder,
            "**": lambda: int(left**right),
        }
        found = apply[operator]()
        if abs(found) >> 256:
            raise NotANumber(f"a number too large in {self._expression!r}")
        return found
