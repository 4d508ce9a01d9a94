"""The alerts, the runbook and the program that tests rules of Prometheus."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from relibra.status.runbook import runbook_text

_REPOSITORY = Path(__file__).parents[2]
RULES_FILE = _REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"
RUNBOOK = runbook_text()
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["spec"]["groups"] for rule in group["rules"]
]


def promtool(*arguments: str | Path) -> None:
    """Run promtool, which must accept what it is asked for."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: it checks rules and queries; on Debian it comes with prometheus")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
