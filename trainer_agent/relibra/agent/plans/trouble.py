"""Trouble that lasts over steps: the log gets each cause once, and the end of the trouble once (S9)."""

import logging
from collections.abc import Hashable

log = logging.getLogger(__name__)


class Trouble:
    """One thing that a job needs in every step and that may fail for several causes. Use it from one thread.

    Args:
        recovered: the log line for the end; `%d` stands for the number of failures.
    """

    def __init__(self, recovered: str) -> None:
        self._recovered = recovered
        self._causes: set[Hashable] = set()
        self._num_failures = 0

    def note(
        self, cause: Hashable, message: str, *args: object, level: int = logging.WARNING, exc_info: bool = False
    ) -> None:
        """Count a failure; log it unless this cause was logged since the last success.

        With `exc_info`, the log line has the traceback of the exception that is being handled.
        """
        self._num_failures += 1
        if cause not in self._causes:
            self._causes.add(cause)
            log.log(level, "%s (logged once until it is over)", message % args, exc_info=exc_info)

    def over(self) -> None:
        """Log that it works again, if it did not; the next failure is logged."""
        if self._num_failures:
            log.warning(self._recovered, self._num_failures)
        self._causes.clear()
        self._num_failures = 0
