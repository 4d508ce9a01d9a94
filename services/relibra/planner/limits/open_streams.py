"""How many streams of reports each account has open, and which stream makes room for another one (S6, S7).

A stream may hold a message that lacks its end, so their number is bounded. Reporters keep a stream open while they have
nothing to send, so the number of workers alone may reach the bound. The streams that were silent for longest then make
room: no worker is shut out for good, and messages that never end leave first.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from relibra.errors import TooManyCalls

IDLE_S = 10.0
"""How long a stream must have been silent before it makes room."""
_LIMIT = "max_streams_per_job"


@dataclass(eq=False)
class OpenStream:
    """One open stream."""

    account: str
    heard_at: float
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the stream makes room for another one."""


class OpenStreams:
    """The open streams of one planner. For one event loop."""

    def __init__(self, max_per_account: int, idle_s: float = IDLE_S) -> None:
        self._max_per_account = max_per_account
        self._idle_s = idle_s
        self._streams: dict[str, dict[OpenStream, None]] = {}
        """The streams of each account, the one that was silent for longest first."""

    @contextmanager
    def open(self, account: str) -> Iterator[OpenStream]:
        """Count a stream of an account for as long as it is open; if there are too many, a silent one makes room.

        Raises:
            TooManyCalls: the account has too many streams open, and all of them sent something a moment ago.
        """
        now = time.monotonic()
        streams = self._streams.setdefault(account, {})
        if len(streams) >= self._max_per_account:
            silent = next(iter(streams))
            if now - silent.heard_at < self._idle_s:
                raise TooManyCalls(
                    f"job {account!r} has {self._max_per_account} streams of reports open at this planner ({_LIMIT}), "
                    f"and none was silent for {self._idle_s:g} s; the reporter tries again, at another planner if "
                    "there is one. Add planners, or raise the limit",
                    limit=_LIMIT,
                )
            self._leave(silent)
            silent.is_over.set()
            streams = self._streams.setdefault(account, {})
        stream = OpenStream(account=account, heard_at=now)
        streams[stream] = None
        try:
            yield stream
        finally:
            self._leave(stream)

    def hear(self, stream: OpenStream) -> None:
        """Note that a whole message of a stream came."""
        stream.heard_at = time.monotonic()
        streams = self._streams.get(stream.account, {})
        if stream in streams:
            del streams[stream]
            streams[stream] = None

    def made_room(self) -> TooManyCalls:
        """Return the error by which a stream ends that made room for another one."""
        return TooManyCalls(
            f"this stream was silent for {self._idle_s:g} s and made room for another one of its job, which has "
            f"{self._max_per_account} streams of reports open at this planner ({_LIMIT}); the reporter opens another "
            "stream. Add planners, or raise the limit",
            limit=_LIMIT,
        )

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def _leave(self, stream: OpenStream) -> None:
        streams = self._streams.get(stream.account, {})
        streams.pop(stream, None)
        if not streams:
            self._streams.pop(stream.account, None)
