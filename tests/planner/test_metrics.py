import asyncio
import urllib.error
import urllib.request
from importlib.metadata import version

import pytest

from relibra.errors import Unavailable
from relibra.planner.metrics import HUNG_AFTER_S, Metrics

PATIENT_S = 60.0


def _status(url: str) -> int:
    try:
        return int(urllib.request.urlopen(url, timeout=PATIENT_S).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_readiness_follows_redis_beside_the_metrics():
    metrics = Metrics()
    port = metrics.serve("127.0.0.1", 0)
    assert _status(f"http://127.0.0.1:{port}/readyz") == 503
    metrics.tell_ready("")
    assert _status(f"http://127.0.0.1:{port}/readyz") == 200
    shown = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENT_S).read().decode()
    assert "relibra_planner_ready 1.0" in shown


def test_a_port_in_use_is_refused():
    port = Metrics().serve("127.0.0.1", 0)
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port} for metrics"):
        Metrics().serve("127.0.0.1", port)


def test_a_planner_whose_event_loop_stands_still_is_neither_alive_nor_ready():
    now = 100.0
    metrics = Metrics(lambda: now)
    assert metrics.probe("/livez") == (True, "alive"), "a planner that starts must not be restarted"
    assert metrics.probe("/readyz") == (False, "not ready: Redis was not asked yet")
    metrics.tell_ready("")
    now += HUNG_AFTER_S
    assert metrics.probe("/readyz") == (True, "ready")
    now += 5
    stands_still = (False, "the event loop has not run for 15 s")
    assert metrics.probe("/livez") == metrics.probe("/readyz") == stands_still
    metrics.beat()
    assert metrics.probe("/livez") == (True, "alive")


def _shown(metrics: Metrics) -> set[str]:
    port = metrics.serve("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENT_S) as answer:
        return set(answer.read().decode().splitlines())


def test_S9_a_planner_whose_event_loop_stands_still_does_not_tell_prometheus_that_it_is_ready() -> None:
    now = 100.0
    metrics = Metrics(lambda: now)
    metrics.tell_ready("")
    assert "relibra_planner_ready 1.0" in _shown(metrics)
    now += HUNG_AFTER_S + 1
    assert "relibra_planner_ready 0.0" in _shown(metrics)


def test_S9_a_planner_of_which_a_part_died_is_neither_alive_nor_ready(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.tell_ready("")

    async def ends() -> None:
        raise LookupError("a bug")

    async def stays() -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        staying = metrics.follow(stays())
        with pytest.raises(LookupError):
            await metrics.follow(ends())
        staying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await staying

    asyncio.run(scenario())
    is_well, line = metrics.probe("/livez") or (True, "")
    assert (is_well, line.partition(".<locals>.")[2]) == (False, "ends ended: LookupError: a bug")
    assert metrics.probe("/readyz") == (is_well, line)
    assert f"start this planner again: {line}" in caplog.text
    assert "relibra_planner_ready 0.0" in _shown(metrics)


def test_a_planner_tells_its_version() -> None:
    assert f'relibra_planner_version{{version="{version("relibra")}"}} 1.0' in _shown(Metrics())


def test_a_planner_without_redis_is_alive_because_a_restart_brings_no_redis_back():
    metrics = Metrics()
    metrics.tell_ready("Redis does not serve")
    assert metrics.probe("/livez") == (True, "alive")


def test_other_paths_are_no_probes():
    assert Metrics().probe("/metrics") is None
