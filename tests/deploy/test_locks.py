"""The locks of images and releases: complete, hashed, at the versions that tests run with; and the bills of them."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.lock import EXTRAS, LEFT_OUT, LOCKS

_REPOSITORY = Path(__file__).parents[2]
_NAMES = sorted(path.stem for path in LOCKS.glob("*.txt"))
_IMAGES = sorted((_REPOSITORY / "deploy" / "docker").glob("*.Dockerfile"))


def _packages(text: str) -> dict[str, set[str]]:
    """Return the versions of each package, which may have one for each platform."""
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.M):
        found.setdefault(_canonical(name), set()).add(version)
    return found


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wanted(extra: str) -> set[str]:
    """Return the packages that relibra names for an extra."""
    project = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
    pending, names = [extra], list(project["dependencies"])
    for each in pending:
        for requirement in project["optional-dependencies"][each]:
            own = re.fullmatch(r"relibra\[(.+)\]", requirement)
            pending += own[1].split(",") if own else []
            names += [] if own else [requirement]
    return {_canonical(re.match(r"[\w.-]+", each)[0]) for each in names}  # type: ignore[index]


def test_there_is_a_lock_for_every_environment() -> None:
    assert sorted([*EXTRAS, "build", "release"]) == _NAMES


@pytest.mark.parametrize("name", _NAMES)
def test_every_package_of_a_lock_has_hashes_and_a_version(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text()
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.M).strip())
    assert entries
    for each in entries:
        assert re.match(r"[\w.-]+==[^\s;]+", each), each
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", each), each
    assert "torch" not in _packages(text)


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_what_relibra_needs_at_the_versions_that_tests_run_with(name: str) -> None:
    locked = _packages((LOCKS / f"{name}.txt").read_text())
    assert _wanted(EXTRAS[name]) - LEFT_OUT[name] <= locked.keys(), "run make lock"
    assert not LEFT_OUT[name] & locked.keys()
    tested = _packages((_REPOSITORY / "constraints.txt").read_text())
    assert {each: versions for each, versions in locked.items() if not versions <= tested.get(each, versions)} == {}


@pytest.mark.parametrize("path", _IMAGES, ids=lambda path: path.stem)
def test_images_install_nothing_from_an_index_without_a_lock_but_torch(path: Path) -> None:
    commands = re.findall(r"pip (?:--python \S+ )?install ([^&\\\n]+)", path.read_text())
    assert commands
    for each in commands:
        assert "--require-hashes" in each or "--no-index" in each or each.split()[-1].startswith("torch=="), each
    assert f"deploy/locks/{path.stem}.txt" in path.read_text()
    assert "--no-build-isolation" in path.read_text(), "a build of its own would fetch what no lock has"


@pytest.mark.parametrize("path", _IMAGES, ids=lambda path: path.stem)
def test_images_say_what_they_are(path: Path) -> None:
    labels = dict(re.findall(r"org\.opencontainers\.image\.([\w.]+)=(\S+|\"[^\"]+\")", path.read_text()))
    assert {"title", "description", "version", "revision", "licenses", "base.name"} <= labels.keys()
    assert labels["version"] == tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("name", EXTRAS)
def test_a_bill_lists_every_package_of_its_lock(name: str) -> None:
    command = [sys.executable, "deploy/sbom.py", name]
    printed = [subprocess.run(command, cwd=_REPOSITORY, capture_output=True, check=True).stdout for _ in range(2)]
    assert printed[0] == printed[1]
    bill = json.loads(printed[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    listed = {(_canonical(each["name"]), each["version"]) for each in bill["components"]}
    locked = _packages((LOCKS / f"{name}.txt").read_text())
    assert listed == {(package, version) for package, versions in locked.items() for version in versions}
    assert {each["purl"] for each in bill["components"]} == set(bill["dependencies"][0]["dependsOn"])
    assert bill["compositions"][0]["aggregate"] == "incomplete"
