"""Attacks over HTTP on services and on the port of metrics, in the form of those on a planner (`attacks`)."""

import contextlib
import http.client
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from urllib.parse import urlsplit

from harness.robustness.attacks import Target

REPORTS = "/v1/jobs/attacker/steps/1/reports?realised=true"
HEAVY_ANSWERS = (REPORTS, "/jobs/attacker", "/jobs/attacker/steps/1?attempt=1", "/v1/jobs/attacker/history?limit=1000")


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


def scrapes(target: Target) -> Iterator[str]:
    """Hold idle connections, and scrape without a pause over others."""
    idle, scraping = _held(target, 400, b"GET /%s"), _asking(target, 8, [""])
    with contextlib.closing(idle), contextlib.closing(scraping):
        while True:
            next(idle)
            yield next(scraping)


def four_readers_of_heavy_answers(target: Target) -> Iterator[str]:
    """Ask for heavy answers over four connections."""
    yield from _asking(target, 4, HEAVY_ANSWERS)


def twenty_readers_of_heavy_answers(target: Target) -> Iterator[str]:
    """Ask for heavy answers over twenty connections."""
    yield from _asking(target, 20, HEAVY_ANSWERS)


def _asking(target: Target, num_readers: int, paths: Sequence[str]) -> Generator[str, None, None]:
    """Ask for one path after another over each of some connections."""
    answers: deque[str] = deque(maxlen=1)
    may_go_on = threading.Event()
    may_go_on.set()

    def read() -> None:
        url = urlsplit(target.address)
        while may_go_on.is_set():
            for path in paths:
                with contextlib.closing(http.client.HTTPConnection(url.netloc, timeout=120)) as connection:
                    try:
                        connection.request("GET", path or url.path, headers={"authorization": f"Bearer {target.token}"})
                        response = connection.getresponse()
                        response.read()
                        answers.append(str(response.status))
                    except OSError as error:
                        answers.append(type(error).__name__)

    readers = [threading.Thread(target=read) for _ in range(num_readers)]
    for reader in readers:
        reader.start()
    try:
        while True:
            time.sleep(1.0)
            yield answers[0] if answers else ""
    finally:
        may_go_on.clear()
        for reader in readers:
            reader.join()


def _held(target: Target, number: int, text: bytes) -> Generator[str, None, None]:
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
