"""`relibra up` and the commands that it starts, as a user runs them."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually, is_alive, report_sequences
from relibra.planning import Schedule
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

RELIBRA = [sys.executable, "-m", "relibra.cli"]


@contextmanager
def up(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    ready_file = folder / "ready.json"
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *RELIBRA,
                "up",
                "--data-dir",
                str(folder / "data"),
                "--port",
                "0",
                "--status-port",
                "0",
                "--ready-file",
                str(ready_file),
                *options,
            ],
            stdout=log,
            stderr=log,
        )
    try:

        def is_ready() -> bool:
            assert process.poll() is None, (folder / "up.log").read_text()
            return ready_file.exists()

        eventually(is_ready, within_s=240)
        yield process, json.loads(ready_file.read_text())
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=120)


def refused(*arguments: str) -> str:
    """Run a command that must fail; return its output."""
    ended = subprocess.run([*RELIBRA, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 2, ended
    assert "Traceback" not in ended.stderr
    return " ".join(ended.stderr.split())


@pytest.mark.parametrize("stop_signal", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_everything_starts_answers_and_stops(
    tmp_path: Path, stop_signal: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIBRA_METRICS_PORT", "0")  # only for the planner: both services would read it
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("RELIBRA_REDIS_PASSWORD_FILE", str(tmp_path / "of-another-redis"))
    with up(tmp_path) as (process, ready):
        (metrics_url,) = re.findall(r"metrics on (\S+)", (tmp_path / "up.log").read_text())

        def metrics() -> bytes:
            with urllib.request.urlopen(metrics_url, timeout=60) as response:
                return bytes(response.read())

        eventually(lambda: b"relibra_planner_ready 1.0" in metrics())
        with urllib.request.urlopen(f"{ready['status']}/readyz", timeout=60) as response:
            assert response.status == 200
        with PlannerClient(ready["planner"]) as client:
            assert client.register_job("job", MODEL, CLUSTER, PARAMS) > 0
        assert all(is_alive(pid) for pid in ready["pids"].values())
        assert ready["pids"].keys() == {"redis", "planner", "status"}
        for service in ("planner", "status"):
            environment = Path(f"/proc/{ready['pids'][service]}/environ").read_bytes().split(b"\0")
            assert b"CUDA_VISIBLE_DEVICES=" in environment, f"{service} sees the GPUs of this machine"
        log = (tmp_path / "up.log").read_text()
        assert ready["planner"] in log
        assert f"  status   {ready['status']}: open" in log
        process.send_signal(stop_signal)
        assert process.wait(timeout=120) == 0
        assert not any(is_alive(pid) for pid in ready["pids"].values())


@pytest.mark.long
def test_nothing_is_left_when_it_is_killed_and_many_signals_stop_it_as_one_does(tmp_path: Path) -> None:
    with up(tmp_path) as (process, ready):
        process.kill()
        process.wait()
        eventually(lambda: not any(is_alive(pid) for pid in ready["pids"].values()))
    (tmp_path / "ready.json").unlink()
    with up(tmp_path) as (process, ready):  # the data directory is free again
        while process.poll() is None and is_alive(ready["pids"]["planner"]):
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0


def test_L3_a_second_start_on_the_same_data_is_refused_and_a_killed_planner_is_brought_back_alone(
    tmp_path: Path,
) -> None:
    with up(tmp_path) as (process, ready), PlannerClient(ready["planner"], timeout_s=60) as client:
        said = refused("up", "--data-dir", str(tmp_path / "data"), "--port", "0", "--status-port", "0")
        assert f"Conflict a redis-server (pid {ready['pids']['redis']}) already runs" in said
        with urllib.request.urlopen(f"{ready['status']}/readyz", timeout=60) as response:
            assert response.status == 200
        client.register_job("job", MODEL, CLUSTER, PARAMS)
        ids = report_sequences(ready["planner"], "job", 1)
        os.kill(ready["pids"]["planner"], signal.SIGKILL)
        port = int(ready["planner"].rpartition(":")[2])
        said = eventually(lambda: "Restart it with" in (log := (tmp_path / "up.log").read_text()) and log)
        assert f"relibra planner --redis-url {ready['redis']} --host 127.0.0.1 --port {port}" in said
        planner = Service("planner", ready["redis"], tmp_path, port=port)
        try:
            client.submit_schedule("job", 1, ids, Schedule.round_robin(8, 2, CLUSTER))
            assert client.fetch_plan("job", 1, MODEL, wait_s=60).id.version == 1
            assert process.poll() is None
        finally:
            planner.stop()


@pytest.mark.long
def test_a_port_in_use_is_one_clear_line(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (
            ("planner", "--redis-url", redis_url, "--port", port),
            ("status", "--redis-url", redis_url, "--port", port),
            ("up", "--redis-url", redis_url, "--port", port, "--status-port", "0"),
            ("up", "--redis-url", redis_url, "--port", "0", "--status-port", port),
        ):
            assert f"Unavailable cannot listen on 127.0.0.1:{port}" in refused(*command)


def test_S4_a_second_planner_does_not_share_the_port_of_the_first(planner: Service) -> None:
    port = planner.address.rpartition(":")[2]
    said = refused("planner", "--redis-url", planner.redis_url, "--port", port)
    assert f"Unavailable cannot listen on {planner.address}: is another planner running there?" in said


@pytest.mark.long
def test_redis_out_of_reach_is_one_clear_line(tmp_path: Path) -> None:
    for verb in ("planner", "status"):
        said = refused(verb, "--redis-url", f"unix://{tmp_path}/none.sock", "--port", "0")
        assert said.startswith("Unavailable Redis does not serve:")


def test_a_password_in_the_url_is_not_shown(tmp_path: Path) -> None:
    said = refused("planner", "--redis-url", "redis://user:hush@127.0.0.1:1/0", "--port", "0")
    assert "Unavailable" in said
    assert "hush" not in said


def test_on_a_terminal_it_says_its_lines_alone_and_the_log_is_in_files(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    command = [*RELIBRA, "up", "--data-dir", str(tmp_path / "data"), "--port", "0", "--status-port", "0"]
    process = subprocess.Popen(command, stdout=end, stderr=end)
    os.close(end)
    said = ""
    try:
        while "planner.log" not in said:
            said += os.read(terminal, 4096).decode()
        eventually(lambda: "ready" in (tmp_path / "data" / "planner.log").read_text())
    finally:
        process.terminate()
        process.wait()
        os.close(terminal)
    words = [line.split()[0] for line in said.splitlines()]
    assert words == ["relibra", "planner", "status", "redis", "log"]
    assert "status service on" in (tmp_path / "data" / "status.log").read_text()
