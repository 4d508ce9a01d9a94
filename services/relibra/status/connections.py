"""How many connections a server holds, and how long a client may take to send the head of a request or read an answer.

uvicorn bounds none of them: a client that connects and sends half a request would hold its connection forever.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from relibra.status.refusals import Bound, Refusals

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 10\r\n"
    b"content-type: text/plain; charset=utf-8\r\n\r\nmax_connections connections are open already\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one listening socket."""

    max_connections: int
    head_timeout_s: float
    answer_timeout_s: float


def bounded_protocol(limits: ConnectionLimits, refusals: Refusals) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol with limits."""

    class BoundedProtocol(H11Protocol):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self._head_timer: asyncio.TimerHandle | None = None
            self._has_begun = False
            """Whether the client has sent a part of the head that is awaited."""
            self._answer_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections and not self._make_room():
                refusals.count(Bound.CONNECTIONS, f"{limits.max_connections} connections are open; refused another one")
                transport.write(_FULL)
                transport.close()
            else:
                self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._has_begun = True
                self._expect_head()
            else:
                self._stop_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self.resume_writing()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._answer_timer = self.loop.call_later(limits.answer_timeout_s, self._cut_off)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._answer_timer is not None:
                self._answer_timer.cancel()
                self._answer_timer = None

        def _cut_off(self) -> None:
            refusals.count(Bound.ANSWER_TIMEOUT, f"an answer was not read for {limits.answer_timeout_s:g} s; hung up")
            self.transport.abort()

        def _make_room(self) -> bool:
            """Hang up on a client that waits for nothing; return whether there is one.

            First goes the one that has sent no whole request for the longest time, because clients that send beginnings
            of requests would otherwise shut out everybody else; then the one whose answer is the oldest.
            """
            ours = [connection for connection in self.connections if isinstance(connection, BoundedProtocol)]
            answered = [
                (connection.timeout_keep_alive_task.when(), id(connection), connection)
                for connection in ours
                if connection.timeout_keep_alive_task is not None and connection._head_timer is None
            ]
            waiting = [
                (connection._head_timer.when(), id(connection), connection)
                for connection in ours
                if connection._head_timer is not None
            ]
            if not (waiting or answered):
                return False
            _, _, longest = min(waiting or answered)
            if longest._has_begun:  # nobody asked anything over the others, so nobody is refused
                refusals.count(
                    Bound.CONNECTIONS,
                    f"{limits.max_connections} connections are open; hung up on one whose request was not whole",
                )
            longest.transport.close()
            longest._stop_timer()
            return True

        def _expect_head(self) -> None:
            # The timer runs on when more of a head comes: a byte now and then must not keep a connection open.
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.head_timeout_s, self._give_up)

        def _stop_timer(self) -> None:
            self._has_begun = False
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _give_up(self) -> None:
            self._head_timer = None
            if self.transport.is_closing():
                return
            if self._has_begun:  # browsers open connections in advance and send nothing; that is no fault
                refusals.count(Bound.HEAD_TIMEOUT, f"no whole request within {limits.head_timeout_s:g} s; hung up")
            self.transport.close()

    return BoundedProtocol
