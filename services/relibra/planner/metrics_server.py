"""The HTTP server of metrics and probes: threads of their own, however many clients connect."""

import contextlib
import socket
import time
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client.exposition import ThreadingWSGIServer


class MetricsServer(ThreadingWSGIServer):
    """Answers a request per connection, each in a thread; many connections take little from the planner (S6)."""

    request_queue_size = 64
    """Connections that wait to be accepted; at 100 per second, less than a second."""
    _ACCEPT_INTERVAL_S = 0.01
    _MAX_OPEN = 64
    """Beyond it the oldest connection makes room, because one that sends a request is answered at once."""

    def __init__(self, *arguments: Any) -> None:
        self._open: list[socket.socket] = []
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, and wait a little before the next one."""
        self._open = [connection for connection in self._open if connection.fileno() >= 0]
        if len(self._open) >= self._MAX_OPEN:
            with contextlib.suppress(OSError):  # its thread ended just now
                self._open.pop(0).shutdown(socket.SHUT_RDWR)
        self._open.append(request)
        super().process_request(request, client_address)
        time.sleep(self._ACCEPT_INTERVAL_S)


class QuietHandler(WSGIRequestHandler):
    """Answers one request of a client, without a log line."""

    timeout = 10.0
    """How long a client may stay silent, in seconds: each connection has a thread of its own."""

    def handle(self) -> None:
        """Answer one request, or hang up on a client that sends none."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing: probes and scrapes come every few seconds."""
