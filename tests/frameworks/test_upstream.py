"""The patches that would give frameworks a point to plug in apply to the installed versions."""

import os
import subprocess
from pathlib import Path

import pytest

PATCHES = Path(__file__).parents[2] / "docs" / "integrations" / "upstream"


@pytest.mark.parametrize("name", ["areal", "skyrl"])
def test_a_patch_applies(name: str, frameworks_python: str) -> None:
    command = [frameworks_python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    outside_of_any_repository = os.environ | {"GIT_CEILING_DIRECTORIES": str(Path(site).parent)}
    subprocess.run(
        ["git", "apply", "--check", str(PATCHES / f"{name}.patch")], cwd=site, env=outside_of_any_repository, check=True
    )
