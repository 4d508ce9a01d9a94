"""The compiled solver, made once before tests wait for planners with deadlines."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

LOCK = Path(__file__)
_COMPILE = "from relibra.planner.solve import solving; solving.warm_up()"


def is_needed_by(item: pytest.Item) -> bool:
    """Return whether a test may start a planner."""
    return item.get_closest_marker("integration") is not None or "shared_planner" in getattr(item, "fixturenames", ())


def compile_once() -> None:
    """Compile the solver into numba's cache on disk, unless it is there.

    Compiling takes half a minute of a core. Without this, every planner of a fresh checkout would compile while a test
    waits for its first plan. Sessions that run side by side compile one after another, and the later ones find the
    cache filled.
    """
    with LOCK.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run([sys.executable, "-c", _COMPILE], check=True, timeout=1200)
