import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from robustness.world import Verdict, World

ROUNDS = int(os.environ.get("RELIBRA_ROBUSTNESS_ROUNDS", "1"))
VERDICTS = pytest.StashKey[list[Verdict]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[VERDICTS] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "round_number" in metafunc.fixturenames:
        metafunc.parametrize("round_number", range(ROUNDS))


@pytest.fixture
def world(tmp_path: Path, round_number: int, request: pytest.FixtureRequest) -> Iterator[World]:
    """A Redis without planners."""
    with World(tmp_path, request.config.stash[VERDICTS]) as world:
        yield world


def pytest_terminal_summary(config: pytest.Config) -> None:
    if "robustness" not in config.option.markexpr:
        return
    table = Table("fault", "promises that held", "times", "slowest recovery")
    by_fault: dict[tuple[str, str], list[float]] = {}
    for each in config.stash[VERDICTS]:
        by_fault.setdefault((each.fault, each.promises), []).append(each.recovery_s)
    for (fault, promises), recoveries_s in by_fault.items():
        table.add_row(fault, promises, str(len(recoveries_s)), f"{max(recoveries_s):.1f} s")
    Console(width=120).print(table)
