"""Results on disk: one small JSON table per benchmark, a row a line, with machine, versions, commit and date."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from relibra.atomic_file import write_atomically

RESULTS = Path(__file__).parent / "results"
TRACES = Path(os.environ.get("RELIBRA_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
"""The folder of the real routing traces, by default beside the repository."""


def write(name: str, rows: Sequence[Mapping[str, object]], **settings: object) -> Path:
    """Write `results/<name>.json`; return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    write_atomically(path, table(machine(), settings, rows).encode())
    return path


def table(machine: Mapping[str, object], settings: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> str:
    """Return a table as JSON with a line for each row and eight digits for each figure."""
    lines = ",\n".join(f"  {json.dumps(_rounded(row))}" for row in rows)
    head = f' "machine": {json.dumps(machine)},\n "settings": {json.dumps(_rounded(settings))}'
    return f'{{\n{head},\n "rows": [\n{lines}\n ]\n}}\n'


def _rounded(value: object) -> object:
    match value:
        case float():
            return float(f"{value:.8g}")
        case Mapping():
            return {name: _rounded(one) for name, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value


def show(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Print a table with a column for each key of the rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = Table(*(name.replace("_", " ") for name in names), title=title)
    for row in rows:
        shown.add_row(
            *(f"{value:.5g}" if isinstance(value := row.get(name, ""), float) else str(value) for name in names)
        )
    Console(width=None if sys.stdout.isatty() else 200).print(shown)


def read(name: str) -> list[dict[str, Any]]:
    """Return the rows of `results/<name>.json`."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    return rows


def settings(name: str) -> dict[str, Any]:
    """Return the settings of `results/<name>.json`, or none if there is no such file."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())["settings"]) if path.is_file() else {}


def machine() -> dict[str, object]:
    """Return the machine and versions that figures are measured on, and the date."""
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in cpu_lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("numpy", "numba", "torch")},
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _commit() -> str:
    """Return the commit that is measured, or "unknown" outside a checkout."""
    asked = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"
