import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks import results
from harness.redis_deployments import Deployment, Failover, OneServer, ThreePrimaries
from harness.robustness.fairness import Fairness
from harness.robustness.history import violations
from harness.robustness.world import Verdict, World

ROUNDS = int(os.environ.get("RELIBRA_ROBUSTNESS_ROUNDS", "1"))
DEPLOYMENTS = os.environ.get("RELIBRA_ROBUSTNESS_REDIS", "server").split(",")
VERDICTS = pytest.StashKey[list[Verdict]]()
FAIRNESS = pytest.StashKey[list[Fairness]]()

START: dict[str, Callable[[Path], Deployment]] = {
    "server": OneServer,
    "cluster": ThreePrimaries,
    "sentinel": Failover,
}


def pytest_configure(config: pytest.Config) -> None:
    config.stash[VERDICTS] = []
    config.stash[FAIRNESS] = []


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


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> list[Fairness]:
    """The rows of the table of waits beside attacks; a test appends its row. `make test` measures none."""
    if ROUNDS == 1:
        pytest.skip("waits beside attacks are measured by `make test-robustness`")
    rows: list[Fairness] = request.config.stash[FAIRNESS]
    return rows


def pytest_terminal_summary(config: pytest.Config) -> None:
    if "robustness" not in config.option.markexpr:
        return
    if rows := config.stash[FAIRNESS]:
        show_fairness(rows)
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


def show_fairness(rows: list[Fairness]) -> None:
    """Print the table of waits beside attacks, and write it beside the results of benchmarks."""
    table = Table("attack", "limit that stopped it", "quiet p99", "p99 under attack", "ratio")
    for each in rows:
        quiet, attacked = (f"{seconds * 1e3:.0f} ms" for seconds in (each.quiet_p99_s, each.attacked_p99_s))
        table.add_row(each.attack, each.stopped_by, quiet, attacked, f"{each.ratio:.1f}")
    Console(width=160).print(table)
    load_average = [round(each, 1) for each in os.getloadavg()]
    results.write("fairness", [each.row for each in rows], load_average=load_average)
