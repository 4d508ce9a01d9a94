"""Log lines of refused calls and sequences: the first of each cause and job at once, then one per interval."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

_INTERVAL_S = 10.0
_MAX_CAUSES = 1024


class RefusalLog:
    """Writes to one logger; remembers the causes that were seen last, and how often each came."""

    def __init__(
        self,
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._logger = logger
        self._clock = clock
        self._interval_s = interval_s
        self._seen: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def note(self, cause: str, job_id: str, text: str, level: int = logging.INFO) -> None:
        """Log `text`, unless a line of the same cause and job was logged within the interval; then only count it."""
        now = self._clock()
        logged_at, num_unlogged = self._seen.pop((cause, job_id), (-self._interval_s, 0))
        if now - logged_at < self._interval_s:
            self._seen[cause, job_id] = logged_at, num_unlogged + 1
            return
        more = f" (and {num_unlogged} more in the {now - logged_at:.0f} s before)" if num_unlogged else ""
        self._logger.log(level, "%s%s", text, more)
        self._seen[cause, job_id] = now, 0
        if len(self._seen) > _MAX_CAUSES:
            self._seen.popitem(last=False)
