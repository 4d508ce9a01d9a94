"""The patches that would give frameworks a public point where the plug-in wraps something: each one applies."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import frameworks

PATCHES = sorted((Path(__file__).parents[2] / "docs" / "integrations" / "upstream").glob("*.patch"))
CHECKOUTS = {"miles": "miles", "nemo-rl": "NeMo-RL", "slime": "slime"}
"""The folder of the checkout of each framework that is not in the environment."""


def code_of(framework: str, frameworks_python: str) -> Path:
    """Return the folder to which the paths of a framework's patch belong."""
    name = CHECKOUTS.get(framework)
    if name is None:
        return next(Path(frameworks_python).parents[1].glob("lib/python*/site-packages"))
    if (folder := frameworks.checkout(name)) is None:
        pytest.skip(frameworks.reason(name))
    return folder


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_for_a_framework_applies(patch: Path, frameworks_python: str, tmp_path: Path) -> None:
    code = code_of(patch.stem, frameworks_python)
    for changed in re.findall(r"^--- a/(\S+)", patch.read_text(), re.MULTILINE):
        (tmp_path / changed).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(code / changed, tmp_path / changed)
    # A repository around the folder would make git look for the paths there, and pass over those that it lacks.
    applied = subprocess.run(
        ["git", "apply", "--verbose", str(patch.resolve())],
        cwd=tmp_path,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    assert "Skipped" not in applied.stderr
