"""`python -m harness.canary DIR` runs every plug-in on the main branch of its framework, and says what broke.

DIR gets the checkouts. The exit status is 1 if a plug-in is refused or computes something else on a main branch.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.frameworks import BRIDGE, CHECKOUTS, MEGATRON, ON_THE_INDEX, VARIABLE, check_out, git

_PLUGINS, _SIGNATURES = "tests/frameworks/test_plugins.py", "tests/plugins/test_signatures.py"
TESTS = {
    "verl": [_PLUGINS, "-k", "verl and main"],
    "SkyRL": [_PLUGINS, "-k", "skyrl and main"],
    "AReaL": [_PLUGINS, "-k", "areal and main"],
    "ms-swift": [_PLUGINS, "-k", "ms_swift and main"],
    "NeMo-RL": [_PLUGINS, _SIGNATURES, "-k", "nemo_rl or NeMo-RL"],
    "ROLL": [_PLUGINS, "-k", "of_roll"],
    "slime": ["tests/distributed/test_slime_plugin.py", _SIGNATURES, "-k", "slime and not miles"],
    "miles": ["tests/distributed/test_slime_plugin.py", _SIGNATURES, "-k", "miles"],
}
"""By framework, the arguments of pytest for the tests that run its checkout."""
_SUBMODULES = {BRIDGE: "NeMo-RL", MEGATRON: BRIDGE}
"""What a framework pins, by the checkout that pins it."""
_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", re.M)
_SKIPPED = re.compile(r"^SKIPPED .*?: (needs .*|no environment.*)$", re.M)


class Finding(NamedTuple):
    """What became of a plug-in on a main branch."""

    framework: str
    commit: str
    """With its date; empty if there is no checkout."""
    broken: Sequence[str]
    """What broke, empty if all ran."""


def newest(folder: Path) -> Iterator[str]:
    """Check out the main branches, and what NeMo-RL's pins; yield the frameworks that could be fetched."""
    addresses = {name: address for name, (address, _) in CHECKOUTS.items()} | ON_THE_INDEX
    for name, address in addresses.items():
        pinned_by = _SUBMODULES.get(name)
        try:
            commit = "HEAD"
            if pinned_by is not None:
                place = str(Path(name).relative_to(pinned_by))
                commit = git(folder / pinned_by, "ls-tree", "--object-only", "HEAD", place).strip()
            check_out(folder / name, address, commit)
        except subprocess.CalledProcessError as error:
            print(f"{name}: not fetched: {error}", file=sys.stderr)
        else:
            yield name


def examine(name: str, folder: Path) -> Finding:
    """Run the tests of a framework on its checkout."""
    commit = git(folder / name, "log", "-1", "--format=%h of %cs").strip()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", "0", "-q", "-rfEs", *TESTS[name]],
        env=os.environ | {VARIABLE: str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    broken = [f"{test.partition('::')[2] or test}: {why}" for test, why in _SUMMARY.findall(done.stdout)]
    if done.returncode and not broken:
        broken = [done.stdout.strip().rpartition("\n")[2]]
    if " passed" not in done.stdout and not broken:
        broken = ["no test ran: " + "; ".join(_SKIPPED.findall(done.stdout))]
    return Finding(name, commit, broken)


def main(folder: Path) -> int:
    """Check out and examine all; return the exit status."""
    fetched = {*newest(folder)}
    findings = [examine(name, folder) if name in fetched else Finding(name, "", ["not fetched"]) for name in TESTS]
    for framework, commit, broken in findings:
        print(f"{framework:9} {commit:22} {'runs' if not broken else f'{len(broken)} broken'}")
        for line in broken:
            print(f"  {line}")
    return int(any(finding.broken for finding in findings))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]).resolve()))
