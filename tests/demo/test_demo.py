"""The whole loop on real parts, as a user runs it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.services import eventually, is_alive


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.distributed
def test_S5_demo_is_neutral_and_as_balanced_as_planned(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relibra.cli", "demo", "--steps", "2", "--data-dir", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment, "COLUMNS": "100"}
    ) as process:
        try:
            # Megatron uses CUDA wherever it sees a GPU, and this demo is for the CPU.
            for name, variables in eventually(lambda: processes_below(process), within_s=240).items():
                assert b"CUDA_VISIBLE_DEVICES=" in variables, f"{name} can see the GPUs of this machine"
            stdout, stderr = process.communicate(timeout=500)
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    log = tmp_path / "services.log"
    assert process.returncode == 0, f"{stdout}{stderr}{log.read_text() if log.exists() else ''}"
    # Which pieces of work get a line depends on the machine: those that begin in the same second share one.
    assert re.search(r"^ *\d+ s  (plain|balanced): ", stdout, re.M), "in a pipe too, it says what it waits for"
    assert "yes neutral: loss and gradient norm of both runs differ by at most" in stdout
    assert "yes balanced: imbalance fell from" in stdout
    # Both plans were real: experts moved and replicas were made, or the comparison would prove nothing.
    assert "2 of 2 steps moved experts and made replicas" in stdout


@pytest.mark.long
@pytest.mark.integration
def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relibra.cli", "demo", "--steps", "2", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually((tmp_path / "ready.json").exists, within_s=240)
            pids = [pid for pid, _, _ in _descendants(process.pid)]
            assert len(pids) >= 4, "up, redis-server, planner and status service"
            process.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        except BaseException:
            process.kill()
            raise
    eventually(lambda: not any(is_alive(pid) for pid in pids), within_s=60)


def test_demo_refuses_no_steps() -> None:
    command = [sys.executable, "-m", "relibra.cli", "demo", "--steps", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "--steps" in result.stderr


def processes_below(demo: "subprocess.Popen[str]") -> dict[str, list[bytes]]:
    """Return the environment of every Python process below the demo, by command line, once the fork server runs.

    The demo starts its services first and its fork server last; trainers and rollout worker are forks of that server.

    Raises:
        AssertionError: the demo has ended.
    """
    assert demo.poll() is None, demo.communicate()
    # Not of redis-server, which writes its title over its environment.
    found = {
        f"{pid} {command}": variables
        for pid, command, variables in _descendants(demo.pid)
        if "-m relibra" in command or "forkserver" in command
    }
    return found if any("forkserver" in name for name in found) else {}


def _descendants(pid: int) -> Iterator[tuple[int, str, list[bytes]]]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                with suppress(FileNotFoundError, ProcessLookupError):
                    command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield child, command, Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                yield from _descendants(child)
