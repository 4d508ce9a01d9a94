"""A thread that shows the planner, every few seconds, that a process is alive."""

import logging
import threading
from collections.abc import Callable

from relibra.errors import Forbidden, RelibraError, StaleEpoch, UnknownJob, Unsupported

log = logging.getLogger(__name__)

DEFAULT_INTERVAL_S = 5.0
"""The interval for planners that do not name one: a third of their default `attempt_silence_s`."""
_FINAL = (StaleEpoch, UnknownJob, Forbidden, Unsupported)
"""The errors after which later calls would fail as well."""


class Heartbeat:
    """Calls a function at an interval, in a thread of its own, until nothing is left to keep alive or `stop` is called.

    Nothing is left once the attempt is over or the job is gone, or if this process may not or cannot make the call. All
    other errors may pass, for example a full planner or a token that is being replaced, so the thread goes on.

    Args:
        beat: tells the planner that the process is alive. It may raise a `RelibraError`.
        interval_s: the time between calls.
        subject: what is kept alive, for the log.
    """

    def __init__(self, beat: Callable[[], None], interval_s: float, subject: str) -> None:
        self._beat, self._interval_s, self._subject = beat, interval_s, subject
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="relibra-heartbeat", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop without waiting for a call that is under way."""
        self._stopped.set()

    def _run(self) -> None:
        trouble = ""
        while not self._stopped.wait(self._interval_s):
            try:
                self._beat()
                if trouble:
                    log.info("%s is kept alive again", self._subject)
                    trouble = ""
            except _FINAL as error:
                if not self._stopped.is_set():
                    log.error("%s is no longer kept alive: %s", self._subject, error)
                return
            except RelibraError as error:
                if not error.retryable and str(error) != trouble and not self._stopped.is_set():
                    trouble = str(error)
                    log.error(
                        "cannot keep %s alive, trying again every %g s: %s", self._subject, self._interval_s, trouble
                    )
            except ValueError:  # gRPC raises it for a call on a closed channel
                return
