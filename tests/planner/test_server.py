"""The log of a planner process, and how the process ends."""

import asyncio
import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, eventually, is_alive, report_sequences
from harness.step_samples import IDS, SCHEDULE, report_all
from relibra.planner import server
from relibra.planner.server import PlannerServer
from relibra.planner.settings import PlannerSettings
from relibra.planning import Schedule
from relibra.store import Store
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration


def test_metrics_logs_and_settings_of_a_planner_that_planned(redis_url: str, tmp_path: Path) -> None:
    planner = Service("planner", redis_url, tmp_path, RELIBRA_METRICS_PORT="0", RELIBRA_LOG_FORMAT="json")
    try:
        with PlannerClient(planner.address) as client:
            epoch = client.register_job("job", MODEL, CLUSTER, PARAMS)
            ids = report_sequences(planner.address, "job", 7)
            client.submit_schedule("job", 7, ids, Schedule.round_robin(8, 2, CLUSTER))
            client.fetch_plan("job", 7, MODEL, wait_s=60)
        lines = [json.loads(line) for line in planner.log().splitlines() if line.startswith("{")]
        (published,) = [line for line in lines if line.get("version")]
        assert (published["job"], published["step"], published["epoch"]) == ("job", 7, f"{epoch:016x}")
        assert any("no authentication" in line["message"] for line in lines)
        assert any("metrics_port=0" in line["message"] for line in lines), "settings of the environment too"
        (url,) = [
            line["message"].removeprefix("metrics on ") for line in lines if line["message"].startswith("metrics")
        ]

        def metrics() -> str:
            with urllib.request.urlopen(url, timeout=60) as response:
                return str(response.read().decode())

        # A call is counted after its answer was sent, and a solve after its plan was published.
        for expected in (
            'relibra_planner_solves_total{outcome="published"} 1.0',
            'relibra_planner_sequences_total{outcome="kept"} 8.0',
            'relibra_planner_call_seconds_count{method="FetchPlan"} 1.0',
            "relibra_planner_ready 1.0",
            "relibra_planner_missing_solvers 0.0",
            "relibra_planner_certificate_renewal_due_timestamp_seconds 0.0",
            'relibra_planner_refused_total{error="Corrupt",method="FetchPlan"} 0.0',
            "relibra_planner_event_loop_lag_seconds_count",
        ):
            eventually(lambda expected=expected: expected in metrics())
    finally:
        assert planner.stop() == 0


def test_S9_a_planner_whose_loop_fails_again_and_again_tells_prometheus(redis_url: str, tmp_path: Path) -> None:
    planner = Service("planner", redis_url, tmp_path, RELIBRA_METRICS_PORT="0")
    try:
        (url,) = re.findall(r"metrics on (\S+)", planner.log())

        def num_errors() -> float:
            with urllib.request.urlopen(url, timeout=60) as response:
                text = str(response.read().decode())
            return float(re.findall(r"^relibra_planner_unexpected_errors (\S+)$", text, re.M)[0])

        assert num_errors() == 0
        with Redis.from_url(redis_url) as redis:
            # What a planner may no longer do is none of the errors that it expects.
            redis.execute_command("ACL", "SETUSER", "default", "-incrby")
            try:
                eventually(lambda: num_errors() > 0)
            finally:
                redis.execute_command("ACL", "SETUSER", "default", "+@all")
        assert "asking Redis for its settings failed" in planner.log()
    finally:
        assert planner.stop() == 0


def test_L4_a_solve_that_outlasts_the_drain_is_left_to_another_planner(
    store: Store, run: Loop, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "DRAIN_TIMEOUT_S", 0.2)
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    report_all(store, run)

    async def scenario() -> None:
        # The lease outlasts the test: the planner has to give it back.
        planner = PlannerServer(PlannerSettings.load(redis_url=redis_url, port=0, lease_s=600.0, num_solvers=1))
        await planner.start()
        async with asyncio.timeout(240):
            while planner._solver.obstacle:
                await store.ping()
        (solver,) = planner._solver._idle[0]._pool._processes
        os.kill(solver, signal.SIGSTOP)
        await store.put_schedule(job, 1, IDS, SCHEDULE)
        async with asyncio.timeout(60):
            # Each check is a round trip to Redis, during which the planner runs.
            while not planner._loop._solves:
                await store.ping()
        refusing = [asyncio.create_task(planner._admission.wait_for_refusal("job", None)) for _ in range(10_000)]
        await planner.stop()
        assert all(task.done() for task in refusing), "the drain waited for refusals, or cut them off"
        # The planner has sent SIGKILL; on a busy machine it takes a moment until the process has ended.
        eventually(lambda: not is_alive(solver))

    run(scenario())
    assert "it is left to another planner" in caplog.text
    left = run(store.take_lease("job", 60))
    assert left is not None
    assert (left.step, left.token) == (1, 2)


def test_S6_connections_beyond_their_number_are_closed_at_once(
    redis_url: str, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)  # RFC 9113: preface and SETTINGS

    async def scenario() -> None:
        planner = PlannerServer(PlannerSettings.load(redis_url=redis_url, port=0, num_solvers=1))
        host, _, port = (await planner.start()).rpartition(":")

        async def is_served() -> asyncio.StreamWriter | None:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(greeting)
                if await reader.read(1):
                    return writer
            except ConnectionError:
                pass
            writer.close()
            return None

        try:
            async with asyncio.timeout(60):
                opened = [await is_served() for _ in range(4)]
                assert None not in opened
                assert await is_served() is None
                for writer in filter(None, opened):
                    writer.close()
                while await is_served() is None:
                    pass
        finally:
            await planner.stop()

    run(scenario())
