"""Results on disk: one JSON file per benchmark, with the machine, the versions and the date of its figures."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from relibra.atomic_file import write_atomically

RESULTS = Path(__file__).parent / "results"
TRACES = Path(os.environ.get("RELIBRA_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
"""The folder of the real routing traces, by default beside the repository."""


def write(name: str, rows: Sequence[Mapping[str, object]], **settings: object) -> Path:
    """Write `results/<name>.json`; return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    text = json.dumps({"machine": machine(), "settings": settings, "rows": list(rows)}, indent=1)
    write_atomically(path, (text + "\n").encode())
    return path


def read(name: str) -> list[dict[str, object]]:
    """Return the rows of `results/<name>.json`."""
    rows: list[dict[str, object]] = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
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
        "date": datetime.now(UTC).date().isoformat(),
    }
