"""The patches that would give frameworks a public point where the plug-in wraps something: each one applies."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import frameworks

PATCHES = Path(__file__).parents[2] / "docs" / "integrations" / "upstream"
INSTALLED = ("areal", "ms-swift", "skyrl", "verl")
"""The frameworks of which the environment has a release."""
CHECKED_OUT = {name.lower(): name for name in (*frameworks.CHECKOUTS, *frameworks.ON_THE_INDEX)}
CASES = [f"{name}-released" for name in INSTALLED] + [f"{each.stem}-main" for each in sorted(PATCHES.glob("*.patch"))]


@pytest.mark.parametrize("case", CASES)
def test_a_patch_for_a_framework_applies(case: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    framework, _, kind = case.rpartition("-")
    if kind == "released":
        python = request.getfixturevalue("frameworks_python")
        code = next(Path(python).parents[1].glob("lib/python*/site-packages"))
    else:
        name = CHECKED_OUT[framework]
        found = frameworks.checkout(name)
        if found is None:
            pytest.skip(frameworks.reason(name))
        code = found
    patch = PATCHES / f"{framework}.patch"
    patched = re.findall(r"^--- a/(\S+)", patch.read_text(), re.MULTILINE)
    for file in patched:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(code / file, tmp_path / file)
    # A repository around the folder would make git look for the paths there, and pass over those that it lacks.
    applied = subprocess.run(
        ["git", "apply", "--verbose", str(patch)],
        cwd=tmp_path,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    assert "Skipped" not in applied.stderr
    for file in patched:
        compile((tmp_path / file).read_text(), file, "exec")
