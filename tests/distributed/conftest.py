"""Starts four gloo ranks per layout, once, and hands what they measured to the tests."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 100.0


class Run:
    """What every rank of one layout returned, by scenario."""

    def __init__(self, by_rank: list[dict[str, Any]], log: str) -> None:
        self._by_rank, self._log = by_rank, log

    def of(self, scenario: str) -> list[dict[str, Any]]:
        """One result a rank; fails the test where a rank raised or never got there."""
        failures = [rank[scenario]["error"] for rank in self._by_rank if "error" in rank.get(scenario, {})]
        if failures:
            pytest.fail(f"{scenario} raised on {len(failures)} ranks, first:\n{failures[0]}")
        missing = [index for index, rank in enumerate(self._by_rank) if scenario not in rank]
        if missing:
            pytest.fail(f"{scenario} did not finish on ranks {missing}; end of the log:\n{self._log[-3000:]}")
        return [rank[scenario] for rank in self._by_rank]

    def worst(self, scenario: str) -> dict[str, float]:
        """The largest relative difference of each kind, over the ranks that have it."""
        results = self.of(scenario)
        noted = [(kind, value) for each in results for kind, value in each["difference"].items()]
        return {kind: max(value for other, value in noted if other == kind) for kind in dict(noted)}


def _run(layout: str, folder: Path) -> Run:
    command = [sys.executable, str(Path(__file__).with_name("ranks.py")), layout, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    files = [folder / f"rank{rank}.json" for rank in range(4)]
    by_rank = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return Run(by_rank, (folder / "log").read_text())


@pytest.fixture(scope="session")
def layout_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Runs a layout when it is first asked for."""
    return functools.cache(lambda layout: _run(layout, tmp_path_factory.mktemp(layout)))


@pytest.fixture(scope="session")
def two_nodes(layout_run: Callable[[str], Run]) -> Run:
    """One EP group of 2 nodes x 2 ranks."""
    return layout_run("two_nodes")


@pytest.fixture(scope="session")
def two_groups(layout_run: Callable[[str], Run]) -> Run:
    """Two EP groups of 1 node x 2 ranks: expert data parallelism."""
    return layout_run("two_groups")
