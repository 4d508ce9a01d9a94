import socket
import urllib.request
from contextlib import ExitStack

import pytest

from relibra.planner.metrics import Metrics
from relibra.planner.metrics_server import MetricsServer, QuietHandler

PATIENT_S = 60.0


def test_S7_a_client_that_asks_nothing_keeps_no_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 < (QuietHandler.timeout or 0) <= PATIENT_S
    monkeypatch.setattr(QuietHandler, "timeout", 0.05)
    port = Metrics().serve("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), PATIENT_S) as silent:
        silent.sendall(b"GET /livez")
        assert silent.recv(1) == b"", "the planner hangs up"
    assert capsys.readouterr().err == "", "a client that hangs is no error of the planner"


def test_S6_of_many_silent_connections_the_oldest_makes_room_for_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricsServer, "_MAX_OPEN", 4)
    port = Metrics().serve("127.0.0.1", 0)
    with ExitStack() as opened:
        silent = [opened.enter_context(socket.create_connection(("127.0.0.1", port), PATIENT_S)) for _ in range(4)]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=PATIENT_S) as answer:
            assert answer.status == 200
        assert silent[0].recv(1) == b"", "the planner hangs up on the oldest"
        silent[1].sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        assert silent[1].recv(12).endswith(b"200"), "and on no other"
