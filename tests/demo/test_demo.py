"""The whole loop on real parts, as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.integration
@pytest.mark.distributed
@pytest.mark.timeout(240)
def test_S5_demo_is_neutral_and_as_balanced_as_planned(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "relibra.cli", "demo", "--steps", "2", "--data-dir", str(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"}, timeout=230
    )
    log = tmp_path / "services.log"
    assert result.returncode == 0, f"{result.stdout}{result.stderr}{log.read_text() if log.exists() else ''}"
    assert "yes neutral: loss and gradient norm of both runs differ by at most" in result.stdout
    assert "yes balanced: imbalance fell from" in result.stdout
    # Both plans were real: experts moved and replicas were made, or the comparison would prove nothing.
    assert "2 of 2 steps moved experts and made replicas" in result.stdout


def test_demo_refuses_no_steps() -> None:
    command = [sys.executable, "-m", "relibra.cli", "demo", "--steps", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "--steps" in result.stderr
