import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from harness.redis_deployments import Deployment, Failover, OneServer, ThreePrimaries
from harness.robustness.history import violations
from harness.robustness.world import Verdict, World

ROUNDS = int(os.environ.get("RELIBRA_ROBUSTNESS_ROUNDS", "1"))
DEPLOYMENTS = os.environ.get("RELIBRA_ROBUSTNESS_REDIS", "server").split(",")
VERDICTS = pytest.StashKey[list[Verdict]]()

START: dict[str, Callable[[Path], Deployment]] = {
    "server": OneServer,
    "cluster": ThreePrimaries,
    "sentinel": Failover,
}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[VERDICTS] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        each = [(name, number) for name in DEPLOYMENTS for number in range(ROUNDS if name == "server" else 1)]
        metafunc.parametrize(("deployment", "round_number"), each)


@pytest.fixture
def world(tmp_path: Path, deployment: str, round_number: int, request: pytest.FixtureRequest) -> Iterator[World]:
    """A Redis without planners. Whatever a test does to it, the answers that clients got must fit the model."""
    folder = tmp_path / "redis"
    folder.mkdir()
    with World(tmp_path, START[deployment](folder), request.config.stash[VERDICTS]) as world:
        yield world
    assert violations(world.history.read()) == []


def pytest_terminal_summary(config: pytest.Config) -> None:
    if "robustness" not in config.option.markexpr:
        return
    by_fault: dict[tuple[str, str, str], list[Verdict]] = defaultdict(list)
    for each in config.stash[VERDICTS]:
        by_fault[each.redis, each.fault, each.promises].append(each)
    table = Table("Redis", "fault", "promises that held", "times", "slowest recovery", "figures")
    for (redis, fault, promises), verdicts in by_fault.items():
        slowest_s = max(each.recovery_s for each in verdicts)
        table.add_row(redis, fault, promises, str(len(verdicts)), f"{slowest_s:.1f} s", verdicts[-1].figures)
    Console(width=160).print(table)
    if path := os.environ.get("RELIBRA_ROBUSTNESS_RESULTS"):
        Path(path).write_text(json.dumps([asdict(each) for each in config.stash[VERDICTS]], indent=1) + "\n")
