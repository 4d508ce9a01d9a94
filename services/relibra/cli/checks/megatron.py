"""Checks that the installed megatron-core has what the agent hooks into, in a process that imports it."""

import json
import os
import re
import subprocess
import sys
from typing import Any

from relibra.cli.checks.finding import Finding, failed, ok, skipped, warning

_SUBJECT = "megatron"
_TIMEOUT_S = 120.0
"""Far longer than torch and megatron-core take to be imported, also from a slow file system."""
_UNLOOKED = "doctor did not check what the agent hooks into"


def examine() -> list[Finding]:
    """Return the findings about the megatron-core that this Python imports."""
    command = [sys.executable, "-P", "-m", "relibra.agent.needed"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        reason = f"megatron-core was not imported within {_TIMEOUT_S:g} s: {_UNLOOKED}"
        return [
            warning(_SUBJECT, reason, f"see where it waits: {sys.executable} -X importtime -c 'import megatron.core'")
        ]
    if ended.returncode == 0:
        return judge(json.loads(next(line for line in reversed(ended.stdout.splitlines()) if line.startswith("{"))))
    reason = (ended.stderr.strip().splitlines() or [f"the process ended with status {ended.returncode}"])[-1]
    if re.search(r"No module named 'megatron(\.core)?'$", reason):
        return [skipped(_SUBJECT, f"megatron-core is not installed: {_UNLOOKED}")]
    fix = "install what is missing: pip install 'relibra[megatron]'; or run relibra doctor in the trainer's Python"
    return [failed(_SUBJECT, f"megatron-core cannot be imported here, so {_UNLOOKED}: {reason}", fix)]


def judge(found: dict[str, Any]) -> list[Finding]:
    """Return the findings about what `relibra.agent.needed` found of a megatron-core."""
    version, ran = found["version"], found["ran"]
    fix = f"install a megatron-core that the tests ran on: {ran[0]} to {ran[-1]}"
    findings = [failed(_SUBJECT, f"megatron-core {version} lacks {lack}", fix) for lack in found["lacks"]]
    if not findings:
        what = f"megatron-core {version} has all {found['num_needs']} attributes and signatures that the agent needs"
        is_tested = ".".join(version.split(".")[:2]) in ran
        findings.append(ok(_SUBJECT, what if is_tested else f"{what}; the tests did not run on this version"))
    if found["lacks_of_replay"]:
        findings.append(
            warning(
                _SUBJECT,
                "its routers have no router_replay of megatron's kind, so the agent cannot give them routing",
                "use the framework's own replay of routing, or plans from history",
            )
        )
    return findings
