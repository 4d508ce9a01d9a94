"""What a session leaves out, in its last lines: files whose packages are missing, and tests that only repeat at length.

This module is a plugin of pytest.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parents[1]
_USERS = {
    ("browser", "playwright"): ("browser", "docs/test_screenshots.py"),
    ("docs", "sphinx"): ("docs/test_site.py",),
    ("schemas", "schemathesis"): ("deploy/test_kubernetes.py", "status/test_described_answers.py"),
}
"""Extra and one of its packages, and the files and folders that need it."""
_MISSING = {extra: files for (extra, package), files in _USERS.items() if find_spec(package) is None}
_NUM_LONG = pytest.StashKey[int]()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files whose packages are missing: they cannot even be imported."""
    return any(collection_path == _TESTS / file for files in _MISSING.values() for file in files) or None


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests that `-m "not long"` leaves out."""
    config = items[0].config if items else None
    if config and "not long" in config.option.markexpr:
        num_long = sum(item.get_closest_marker("long") is not None for item in items)
        config.stash[_NUM_LONG] = config.stash.get(_NUM_LONG, 0) + num_long


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that writes the last lines what this worker of xdist has left out."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["num_long"] = session.config.stash.get(_NUM_LONG, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the number of the last worker: every worker collects all tests."""
    node.config.stash[_NUM_LONG] = getattr(node, "workeroutput", {}).get("num_long", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and how to run it."""
    for extra, files in _MISSING.items():
        names = ", ".join(f"tests/{file}" for file in files)
        terminalreporter.write_line(f"LEFT OUT: {names}, without `pip install --editable '.[{extra}]'`")
    num_long = config.stash.get(_NUM_LONG, 0)
    if num_long:
        terminalreporter.write_line(
            f"LEFT OUT: {num_long} tests that repeat at length what others show once; `make test-all` runs them"
        )
