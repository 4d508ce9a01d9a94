"""`LeftOut`: what a file has and its recording has not, counted by cause."""

import re
from dataclasses import dataclass

from relibra.errors import RelibraError

_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class Cause:
    """Lines, responses, or choices of responses, that were left out for the same reason."""

    count: int
    example: str
    """The error of the first one, with its line. The errors of the others differ in their numbers at most."""


class LeftOut:
    """Counts what was left out. Errors that differ in numbers only have one cause."""

    def __init__(self) -> None:
        self._causes: dict[str, Cause] = {}

    def add(self, error: RelibraError) -> None:
        """Count one line, response or choice that was refused with this error."""
        text = str(error)
        cause = self._causes.setdefault(_NUMBER.sub("#", text), Cause(0, text))
        cause.count += 1

    @property
    def count(self) -> int:
        """The number of lines, responses and choices that were left out."""
        return sum(cause.count for cause in self._causes.values())

    @property
    def causes(self) -> list[Cause]:
        """All causes, the most frequent first."""
        return sorted(self._causes.values(), key=lambda cause: -cause.count)
