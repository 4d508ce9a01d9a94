"""An older relibra, from the history of this repository, whose services and clients meet those of today."""

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from harness.doc_blocks import REPOSITORY

COMMIT = "80079d1d232cbb920d1f8d849dad8d3fbd20ab62"
"""Before reports had durations and cost models the time of hosts; nothing was released that could stand here."""
SCHEMA_VERSION = 6
_NUMBA = """
class _Stats:
    cache_hits, cache_misses = {}, {}

def njit(**_):
    def uncompiled(function):
        function.stats = _Stats
        return function
    return uncompiled
"""
"""A numba that leaves functions as they are: compiling would take half a minute, for one small step."""
_ROOTS = ("services", "trainer_agent", "kernels", "proto")


def unpack(folder: Path) -> dict[str, str]:
    """Write the older sources to `folder`, and return the environment variables of processes that run them."""
    command = ["git", "-C", REPOSITORY, "archive", COMMIT, *_ROOTS, "docs/runbook.md"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(
            f"the history of this checkout lacks {COMMIT[:7]}, an older relibra: git fetch --unshallow ({error})"
        )
    with tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    (without_compiler := folder / "without-compiler").mkdir()
    (without_compiler / "numba.py").write_text(_NUMBA)
    # These folders come before those of today.
    return {"PYTHONPATH": os.pathsep.join(map(str, [without_compiler, *(folder / root for root in _ROOTS)]))}
