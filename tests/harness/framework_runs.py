"""Runs of a framework's own engine beside the one with the plug-in, in the environment with the frameworks."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import child_process
from harness.services import Service

DEADLINE_S = 600.0


class FrameworkRun:
    """The results of all ranks, by scenario.

    Args:
        folder: has a folder `<n> ranks` for each number of ranks, with a file of results for each rank.
        log: what all ranks printed.
    """

    def __init__(self, folder: Path, log: str) -> None:
        self._by_world = [
            [json.loads(file.read_text()) for file in sorted(world.glob("rank*.json"))]
            for world in folder.glob("* ranks")
        ]
        self.log = log

    def of(self, scenario: str) -> list[dict[str, Any]]:
        """Return one result per rank. The test fails if a rank raised or did not reach the scenario."""
        for by_rank in self._by_world:
            for results in by_rank:
                result = results.get(scenario) or results.get("failed", {})
                if "error" in result:
                    pytest.fail(f"{scenario} raised:\n{result['error']}")
            if by_rank and all(scenario in results for results in by_rank):
                return [results[scenario] for results in by_rank]
        last = self.log.strip().rpartition("\n")[2]
        pytest.fail(f"did not finish: {last}\nend of the log:\n{self.log[-3000:]}")


def run(
    python: str, module: str, folder: Path, planner: Service, *sources: Path, arguments: Sequence[str] = ()
) -> FrameworkRun:
    """Run a module of the harness that runs ranks; return what they computed.

    Args:
        python: the interpreter of the environment.
        module: the module; its first arguments are a folder and the address of a planner.
        folder: where the ranks write.
        planner: plans for the ranks.
        sources: folders from which the ranks import packages before all others.
        arguments: more arguments.
    """
    environment = child_process.environment(OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1", CUDA_VISIBLE_DEVICES="")
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, sources), environment["PYTHONPATH"]])
    log = folder / "log"
    run_to_log([python, "-m", module, str(folder), planner.address, *arguments], log, environment, DEADLINE_S)
    return FrameworkRun(folder, log.read_text())


def run_to_log(
    command: Sequence[str], log: Path, environment: Mapping[str, str], timeout_s: float, *, cwd: Path | None = None
) -> int | None:
    """Run a command, and end what it has started; return its status, None if it ran past its time.

    Its output goes to a file: processes that it started may outlive it, and would keep a pipe open.
    """
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=cwd, start_new_session=True
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
