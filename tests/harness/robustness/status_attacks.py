"""Attacks on the status service, in the form of those on a planner (`harness.robustness.attacks`)."""

import contextlib
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from harness.robustness.attacks import Target


def connect(address: str) -> socket.socket:
    """Connect to the service at a URL."""
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=30)


def streams_of_events(target: Target, num_streams: int = 700) -> Iterator[str]:
    """Open event streams and read nothing of them."""
    yield from _held(target, num_streams, b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n%s\r\n")


def unfinished_heads(target: Target, num_heads: int = 900) -> Iterator[str]:
    """Send beginnings of requests."""
    yield from _held(target, num_heads, b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\n%s")


def _held(target: Target, number: int, text: bytes) -> Iterator[str]:
    """Hold connections open, and open each one again that the service ends."""
    head = text % (f"authorization: Bearer {target.token}\r\n".encode() if target.token else b"")
    open_sockets: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        while True:
            open_sockets = [each for each in open_sockets if not _has_ended(each)]
            while len(open_sockets) < number:
                open_sockets.append(stack.enter_context(contextlib.closing(connect(target.address))))
                open_sockets[-1].sendall(head)
            yield ""
            time.sleep(1.0)


def _has_ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while data := connection.recv(65536):
            if b" 503 " in data:
                break
        connection.close()
        return True
    except BlockingIOError:
        return False
    except ConnectionError:
        connection.close()
        return True
