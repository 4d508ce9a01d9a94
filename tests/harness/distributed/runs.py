"""Runs of layouts: starts their ranks, and keeps what the ranks measured."""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from harness import child_process
from harness.differences import largest
from harness.distributed.ways_to_join import VARIABLE, Way

DEADLINE_S = 400.0


class Run:
    """The results of all ranks of one layout, by scenario."""

    def __init__(self, by_rank: list[dict[str, Any]], log: str) -> None:
        self.by_rank, self.log = by_rank, log

    def of(self, scenario: str) -> list[dict[str, Any]]:
        """Return one result per rank. The test fails if a rank raised or did not finish the scenario."""
        failures = [rank[scenario]["error"] for rank in self.by_rank if "error" in rank.get(scenario, {})]
        if failures:
            # If one rank raises and leaves, the others see that its connections end.
            failures.sort(key=lambda failure: "Connection closed by peer" in failure)
            pytest.fail(f"{scenario} raised on {len(failures)} ranks, first:\n{failures[0]}")
        missing = [index for index, rank in enumerate(self.by_rank) if scenario not in rank]
        if missing or not self.by_rank:
            pytest.fail(f"{scenario} did not finish on ranks {missing}; end of the log:\n{self.log[-3000:]}")
        return [rank[scenario] for rank in self.by_rank]

    def worst(self, scenario: str) -> dict[str, float]:
        """Return the largest relative difference of each kind over all ranks that have it."""
        results = self.of(scenario)
        noted = [(kind, value) for each in results for kind, value in each["difference"].items()]
        return {kind: largest(value for other, value in noted if other == kind) for kind in dict(noted)}


class Ranks:
    """A process that has imported megatron, and starts the ranks of one layout after the other.

    Args:
        way: how the ranks join, and so on which device.
        variables: what else their environment needs.
    """

    def __init__(self, way: Way = Way.CPU, **variables: str) -> None:
        self._way, self._variables = way, variables
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, layout: str, folder: Path) -> Run:
        """Run all scenarios of a layout that run this way; return what the ranks wrote to `folder`."""
        if self._way is not Way.CPU and layout != "hot_path":
            pytest.skip(f"{layout} runs on the CPU only")
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        process.stdin.write(f"{layout} {folder}\n".encode())
        process.stdin.flush()
        log = self._log_until_done(process)
        files = sorted(folder.glob("rank*.json"))
        return Run([json.loads(file.read_text()) for file in files], log)

    def stop(self) -> None:
        """End the process and its ranks."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _log_until_done(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        log, deadline = b"\n", time.monotonic() + DEADLINE_S
        while b"\ndone\n" not in log:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                self.stop()
                break
            log += chunk
        return log.decode()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            child_process.command("harness.distributed.scenario_ranks"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Compiling megatron's small fused functions takes longer than running them in these tests.
            env=child_process.environment(
                OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1", **{VARIABLE: self._way}, **self._variables
            ),
            start_new_session=True,
        )
