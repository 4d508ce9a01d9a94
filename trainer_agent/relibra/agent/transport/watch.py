"""The end of a process whose device waits in vain for another rank.

A stream that waits for a signal cannot raise, and no thread of the host waits beside it. Work that is stuck behind it
would fail later, under another name. So a thread looks now and then, and ends the process as NCCL's watchdog does.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from relibra.agent.transport.lost_ranks import missing

log = logging.getLogger(__name__)


class WatchedMark(Protocol):
    """A point in a stream."""

    def is_over(self) -> bool:
        """Return whether the device has passed the point."""

    def late_peers(self) -> list[int]:
        """Return the peers whose signals are missing before the point."""


class WatchedStream(Protocol):
    """A stream that remembers its last mark."""

    @property
    def last_mark(self) -> WatchedMark | None:
        """The last mark that was made; the device passes all others before it."""


class Watch(threading.Thread):
    """Looks twice per timeout, and gives up between half the timeout and the timeout after a mark was made.

    So few looks are also gentle: CUDA forbids them while another thread captures a graph.

    Args:
        timeout_s: how long a stream may wait for peers.
        streams: the streams to watch; the caller may add to them.
        end: ends the process.
    """

    def __init__(self, timeout_s: float, streams: Sequence[WatchedStream], end: Callable[[], None] = os.abort) -> None:
        super().__init__(name="relibra-transport-watch", daemon=True)
        self._timeout_s, self._streams, self._end = timeout_s, streams, end
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look until `stop` is called or a stream is stuck."""
        before: dict[int, WatchedMark] = {}
        while not self._stopped.wait(self._timeout_s / 2):
            stuck = [mark for mark in before.values() if not mark.is_over()]
            if stuck:
                late = {peer for mark in stuck for peer in mark.late_peers()}
                log.critical("%s", missing(late, f"this rank's GPU waits for signals since {self._timeout_s / 2:g} s"))
                self._end()
                return
            marks = {i: stream.last_mark for i, stream in enumerate(self._streams)}
            before = {i: mark for i, mark in marks.items() if mark is not None}

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()
