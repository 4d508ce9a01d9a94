"""Fixtures that start the gloo ranks of a layout once, and give their results to the tests."""

import functools
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import child_process

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
        return {kind: max(value for other, value in noted if other == kind) for kind in dict(noted)}


class Ranks:
    """A process that has imported megatron, and forks the ranks of one layout after the other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, layout: str, folder: Path) -> Run:
        process = self._process = self._process or _started()
        assert process.stdin is not None
        process.stdin.write(f"{layout} {folder}\n".encode())
        process.stdin.flush()
        log = self._log_until_done(process)
        return Run([json.loads(file.read_text()) for file in sorted(folder.glob("rank*.json"))], log)

    def stop(self) -> None:
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


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        child_process.command("harness.distributed.ranks"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Compiling megatron's small fused functions takes longer than running them in these tests.
        env=child_process.environment(OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1"),
        start_new_session=True,
    )


@pytest.fixture(scope="session")
def layout_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Run]]:
    """A function that runs a layout on first use, and returns its results."""
    ranks = Ranks()
    yield functools.cache(lambda layout: ranks.run(layout, tmp_path_factory.mktemp(layout)))
    ranks.stop()


@pytest.fixture(scope="session")
def two_nodes(layout_run: Callable[[str], Run]) -> Run:
    """One EP group of 2 nodes x 2 ranks."""
    return layout_run("two_nodes")


@pytest.fixture(scope="session")
def two_groups(layout_run: Callable[[str], Run]) -> Run:
    """Two EP groups of 1 node x 2 ranks: expert data parallelism."""
    return layout_run("two_groups")
