"""A thread that shows the planner, every few seconds, that a process is alive."""

import logging
import threading
from collections.abc import Callable

from relibra.errors import RelibraError

log = logging.getLogger(__name__)

DEFAULT_INTERVAL_S = 5.0
"""The interval for planners that do not name one: a third of their default `attempt_silence_s`."""


class Heartbeat:
    """Calls a function at an interval, in a thread of its own, until the function fails for good or `stop` is called.

    Args:
        beat: tells the planner that the process is alive. It may raise a `RelibraError`.
        interval_s: the time between calls.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float) -> None:
        self._beat, self._interval_s = beat, interval_s
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="relibra-heartbeat", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop without waiting for a call that is under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._beat()
            except RelibraError as error:
                if not error.retryable and not self._stopped.is_set():
                    log.error("%s", error)
                    return
            except ValueError:  # gRPC raises it for a call on a closed channel
                return
