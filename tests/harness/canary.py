"""`python -m harness.canary DIR` runs every plug-in on the main branch of its framework, and says what broke.

With `--before`, it runs those of frameworks on the package index on the release before the one that the environment
has. DIR gets checkouts and packages. The exit status is 1 if a plug-in is refused or computes something else.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.frameworks import CHECKOUTS, ON_THE_INDEX, VARIABLE, check_out, check_out_pins, git

_PLUGINS, _SIGNATURES = "tests/frameworks/test_plugins.py", "tests/plugins/test_signatures.py"
_SLIME, _PATCHES = "tests/distributed/test_slime_plugin.py", "tests/frameworks/test_upstream_patches.py"
TESTS = {
    "verl": [_PLUGINS, _PATCHES, "-k", "verl and main"],
    "SkyRL": [_PLUGINS, _PATCHES, "-k", "skyrl and main"],
    "AReaL": [_PLUGINS, _PATCHES, "-k", "areal and main"],
    "ms-swift": [_PLUGINS, _PATCHES, "-k", "ms_swift and main or ms-swift-main"],
    "NeMo-RL": [_PLUGINS, _SIGNATURES, _PATCHES, "-k", "nemo_rl or NeMo-RL"],
    "ROLL": [_PLUGINS, _PATCHES, "-k", "of_roll or roll-main"],
    "slime": [_SLIME, _SIGNATURES, _PATCHES, "-k", "slime and not miles"],
    "miles": [_SLIME, _SIGNATURES, _PATCHES, "-k", "miles"],
}
"""By framework, the arguments of pytest for the tests that run its checkout."""
_PACKAGES = {"verl": "verl", "ms-swift": "ms-swift"}
"""The frameworks of which an earlier release is on the index, and is not refused by name."""
_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", re.M)
_SKIPPED = re.compile(r"^SKIPPED .*?: (needs .*|no environment.*)$", re.M)


class Finding(NamedTuple):
    """What became of a plug-in on a main branch or an earlier release."""

    framework: str
    version: str
    """A commit with its date, or a release; empty if there is neither."""
    broken: Sequence[str]
    """What broke, empty if all ran."""


def newest(folder: Path) -> Iterator[str]:
    """Check out the main branches, and what they pin; yield the frameworks that could be fetched."""
    addresses = {name: address for name, (address, _) in CHECKOUTS.items()} | ON_THE_INDEX
    for name, address in addresses.items():
        try:
            check_out(folder / name, address, "HEAD")
            check_out_pins(folder, name)
        except subprocess.CalledProcessError as error:
            print(f"{name}: not fetched: {error}", file=sys.stderr)
        else:
            yield name


def release_before(package: str, folder: Path) -> str:
    """Install the release before that of the environment with the frameworks into a folder; return its version."""
    python = str(Path(os.environ["RELIBRA_FRAMEWORKS_VENV"]).resolve() / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    said = subprocess.run([*pip, "index", "versions", package], check=True, stdout=subprocess.PIPE, text=True).stdout
    (installed,) = re.findall(r"INSTALLED:\s*(\S+)", said)
    released = re.findall(r"[^\s,]+", re.findall(r"Available versions: (.*)", said)[0])
    version: str = released[released.index(installed) + 1]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--target", str(folder), f"{package}=={version}"], check=True
    )
    return version


def examine(name: str, folder: Path, version: str) -> Finding:
    """Run the tests of a framework on what the folder has of it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", "0", "-q", "-rfEs", *TESTS[name]],
        env=os.environ | {VARIABLE: str(folder), "COLUMNS": "400"},  # or pytest leaves out why a test failed
        stdout=subprocess.PIPE,
        text=True,
    )
    broken = [f"{test.partition('::')[2] or test}: {why}" for test, why in _SUMMARY.findall(done.stdout)]
    if done.returncode and not broken:
        broken = [done.stdout.strip().rpartition("\n")[2]]
    if " passed" not in done.stdout and not broken:
        broken = ["no test ran: " + "; ".join(_SKIPPED.findall(done.stdout))]
    return Finding(name, version, broken)


def of_main(folder: Path) -> Iterator[Finding]:
    """Examine all frameworks on their main branches."""
    fetched = {*newest(folder)}
    for name in TESTS:
        if name in fetched:
            yield examine(name, folder, git(folder / name, "log", "-1", "--format=%h of %cs").strip())
        else:
            yield Finding(name, "", ["not fetched"])


def main(folder: Path, *, is_before: bool) -> int:
    """Examine main branches or earlier releases; return the exit status."""
    if is_before:
        releases = {name: release_before(package, folder / name) for name, package in _PACKAGES.items()}
        findings = [examine(name, folder, version) for name, version in releases.items()]
    else:
        findings = [*of_main(folder)]
    for framework, version, broken in findings:
        print(f"{framework:9} {version:22} {'runs' if not broken else f'{len(broken)} broken'}")
        for line in broken:
            print(f"  {line}")
    return int(any(finding.broken for finding in findings))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--before", action="store_true")
    asked = parser.parse_args()
    sys.exit(main(asked.folder.resolve(), is_before=asked.before))
