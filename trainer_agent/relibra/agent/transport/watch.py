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

_PATIENCE_S = 5.0
"""How long a device that is stuck may take to say whom it waits for."""


class WatchedMark(Protocol):
    """A point in a stream."""

    def is_over(self) -> bool:
        """Return whether the device has passed the point."""

    def late_peers(self) -> list[int]:
        """Return the peers whose signals are missing before the point."""


class WatchedStream(Protocol):
    """A stream that remembers its last point."""

    def take_mark(self) -> WatchedMark | None:
        """Return the last point, if there is one, which stays the same until the next call."""


class Watch(threading.Thread):
    """Looks twice per timeout, and gives up between half the timeout and the timeout after a mark was made.

    Args:
        timeout_s: how long a stream may wait for peers.
        streams: the streams to watch; the caller may add to them.
        prepare: is called once in this thread, before the first look.
        end: ends the process.
    """

    def __init__(
        self,
        timeout_s: float,
        streams: Sequence[WatchedStream],
        prepare: Callable[[], None] = lambda: None,
        end: Callable[[], None] = os.abort,
    ) -> None:
        super().__init__(name="relibra-transport-watch", daemon=True)
        self._timeout_s, self._streams, self._prepare, self._end = timeout_s, streams, prepare, end
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look until `stop` is called or a stream is stuck."""
        self._prepare()
        before: dict[int, WatchedMark] = {}
        while not self._stopped.wait(self._timeout_s / 2):
            stuck = [mark for mark in before.values() if not _is_over(mark)]
            if stuck:
                why = f"this rank's GPU waits for signals since {self._timeout_s / 2:g} s"
                log.critical("%s", missing(self._late(stuck), why))
                self._end()
                return
            marks = {i: stream.take_mark() for i, stream in enumerate(self._streams)}
            before = {i: mark for i, mark in marks.items() if mark is not None}

    def _late(self, stuck: Sequence[WatchedMark]) -> set[int]:
        """Return the peers that are late, or none if the device does not say: the process ends in any case.

        The device is asked in another thread, because work that reads its memory may be stuck as well.
        """
        late = set[int]()
        asking = threading.Thread(target=lambda: late.update(*(mark.late_peers() for mark in stuck)), daemon=True)
        asking.start()
        asking.join(min(_PATIENCE_S, self._timeout_s / 2))
        return set(late)

    def stop(self) -> None:
        """Stop looking."""
        self._stopped.set()


def _is_over(mark: WatchedMark) -> bool:
    """Return whether the device has passed a mark; a device that fails when asked passes no mark again."""
    try:
        return mark.is_over()
    except Exception:
        log.exception("the device does not say whether it has passed a point")
        return False
