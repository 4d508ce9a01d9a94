"""Clients that connect and never finish a request, and more connections than the service takes."""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.services import Service, eventually

pytestmark = pytest.mark.integration

WHOLE = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"


def connect(service: Service) -> socket.socket:
    url = urlsplit(service.address)
    return socket.create_connection((url.hostname, url.port), timeout=120)


def answer(connection: socket.socket, request: bytes = WHOLE) -> bytes:
    """Send a request; return the head of the answer and as much of the body as the head announces.

    The answer is cut short, or empty, if the service hangs up before.
    """
    received = b""
    try:
        connection.sendall(request)
        while not is_whole(received):
            if not (data := connection.recv(65536)):
                break
            received += data
    except ConnectionError:
        pass
    return received


def is_whole(received: bytes) -> bool:
    """Return whether the head of an answer is there, with the body unless its length is unknown (an event stream)."""
    head, has_head, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    return bool(has_head) and (length is None or len(body) >= int(length[1]))


def until_closed(connection: socket.socket) -> bytes:
    """Return everything that comes until the service hangs up."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


def served(service: Service) -> socket.socket | None:
    """Return a connection over which a request was answered, or None if the service hung up before the request."""
    connection = connect(service)
    if b"200 OK" in answer(connection):
        return connection
    connection.close()
    return None


def num_sent_until_cut(service: Service) -> int:
    """Send a head that never ends, a letter now and then; return how often something was sent until the hang-up."""
    num_sent, part = 0, b"GET / HTTP/1.1\r\nx: "
    with closing(connect(service)) as drip:
        drip.settimeout(0.05)
        while True:
            try:
                drip.sendall(part)
                num_sent, part = num_sent + 1, b"x"
                if drip.recv(1) == b"":
                    return num_sent
            except TimeoutError:
                continue
            except ConnectionError:
                return num_sent


@pytest.fixture
def serve(redis_url: str, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts a service with room for 20 connections, and time for their requests."""
    with ExitStack() as started:

        def start(**variables: str) -> Service:
            usual = {"RELIBRA_MAX_CONNECTIONS": "20", "RELIBRA_HEAD_TIMEOUT_S": "600"}
            service = Service("status", redis_url, tmp_path, **usual | variables)
            started.callback(service.stop)
            return service

        yield start


@pytest.fixture
def crowded(serve: Callable[..., Service]) -> Service:
    return serve()


def test_S7_unfinished_heads_are_hung_up_on_however_slowly_they_grow(serve: Callable[..., Service]) -> None:
    bounded = serve(RELIBRA_HEAD_TIMEOUT_S="0.5")
    with ExitStack() as stack:
        silent, half = (stack.enter_context(closing(connect(bounded))) for _ in range(2))
        half.sendall(WHOLE[:-2])
        # A busy machine may need longer for a request than the service waits for it; then another connection asks.
        kept = stack.enter_context(closing(eventually(lambda: served(bounded))))
        kept.sendall(WHOLE[:5])
        for each in (silent, half, kept):
            assert until_closed(each) == b"", "the service hangs up"
        num_drips = 0

        def is_cut_while_it_drips() -> bool:
            nonlocal num_drips
            num_drips += 1
            return num_sent_until_cut(bounded) > 1  # one, if this test stood still meanwhile

        eventually(is_cut_while_it_drips)
        with closing(eventually(lambda: served(bounded))) as fresh:
            text = answer(fresh, WHOLE.replace(b"/healthz", b"/metrics"))
    expected = f'relibra_status_refused_total{{setting="head_timeout_s"}} {2 + num_drips}.0'
    assert expected.encode() in text, "a silent connection is no fault"
    assert "no whole request within 0.5 s" in bounded.log()


def test_S6_clients_without_a_request_make_room_for_others(crowded: Service) -> None:
    with ExitStack() as held:
        served = held.enter_context(closing(connect(crowded)))
        assert b"200 OK" in answer(served, WHOLE.replace(b"/healthz", b"/v1/events"))
        waiting = [held.enter_context(closing(connect(crowded))) for _ in range(19)]
        for each in waiting:
            each.sendall(WHOLE[:-2])
        for each in waiting[:2]:
            other = held.enter_context(closing(connect(crowded)))
            assert b"200 OK" in answer(other)
            assert answer(each, b"") == b"", "the service hangs up on the one that waited longest"
        assert b"200 OK" in answer(waiting[2], WHOLE[-2:])
        served.setblocking(False)
        with suppress(BlockingIOError):
            assert served.recv(65536), "an open event stream stays"
    assert "hung up on one whose request was not whole" in crowded.log()


@pytest.mark.parametrize("has_asked", [True, pytest.param(False, marks=pytest.mark.long)])
def test_S6_making_room_for_others_refuses_nobody_who_asks_nothing_more(crowded: Service, has_asked: bool) -> None:
    with ExitStack() as held:
        for _ in range(20):
            idle = held.enter_context(closing(connect(crowded)))
            assert not has_asked or b"200 OK" in answer(idle)
        fresh = held.enter_context(closing(connect(crowded)))
        text = answer(fresh, WHOLE.replace(b"/healthz", b"/metrics"))
    assert b'relibra_status_refused_total{setting="max_connections"} 0.0' in text


@pytest.mark.long
def test_S7_connections_beyond_the_limit_are_told_so_and_room_is_used_again(crowded: Service) -> None:
    def is_served() -> bool:
        with closing(connect(crowded)) as connection:
            return b"200 OK" in answer(connection)

    with ExitStack() as held:
        streams = [held.enter_context(closing(connect(crowded))) for _ in range(20)]
        for each in streams:
            assert b"200 OK" in answer(each, WHOLE.replace(b"/healthz", b"/v1/events"))
        with closing(connect(crowded)) as refused:
            reply = until_closed(refused)
            assert reply.startswith(b"HTTP/1.1 503")
            assert b"max_connections" in reply
    eventually(is_served)
    assert "20 connections are open; refused another one (max_connections)" in crowded.log()


def test_S7_viewers_that_come_at_once_do_not_exceed_the_limit(serve: Callable[..., Service]) -> None:
    service = serve(RELIBRA_MAX_VIEWERS="5", RELIBRA_MAX_CONNECTIONS="768")
    with ExitStack() as held:
        viewers = [held.enter_context(closing(connect(service))) for _ in range(40)]
        for viewer in viewers:
            viewer.sendall(WHOLE.replace(b"/healthz", b"/v1/events"))
        status = [viewer.recv(65536).split()[1] for viewer in viewers]
        assert (status.count(b"200"), status.count(b"429")) == (5, 35)
        with closing(connect(service)) as asking:
            text = answer(asking, WHOLE.replace(b"/healthz", b"/metrics"))
    assert b'relibra_status_refused_total{setting="max_viewers"} 35.0' in text
