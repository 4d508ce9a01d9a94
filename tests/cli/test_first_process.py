"""relibra as the first process of a container: Linux withholds every signal from it that it does not handle."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.services import eventually

_NAMESPACES = (["unshare", "--pid", "--fork"], ["unshare", "--user", "--map-root-user", "--pid", "--fork"])
_IMPORTS_FOR_EVER = "import pathlib, signal\npathlib.Path({imported!r}).touch()\nwhile True: signal.pause()\n"


@pytest.fixture(scope="module")
def as_first_process() -> list[str]:
    """The command that starts another one as the first process of a namespace."""
    for command in _NAMESPACES:
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("this machine allows no process namespace: run as root, or permit user namespaces")


def test_L4_a_service_that_still_imports_its_modules_stops(as_first_process: list[str], tmp_path: Path) -> None:
    imported = tmp_path / "imported"
    (tmp_path / "rich.py").write_text(_IMPORTS_FOR_EVER.format(imported=str(imported)))
    process = subprocess.Popen(
        [*as_first_process, sys.executable, "-m", "relibra.cli", "planner"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    try:
        eventually(imported.exists)
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        if process.poll() is None:
            os.kill(int(first), signal.SIGKILL)
