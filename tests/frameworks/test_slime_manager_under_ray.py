"""Relibra in the rollout manager, an actor of Ray: a training process sends it there, without a line of the user."""

import json
import os
import subprocess

import pytest

from harness import child_process, frameworks


def test_L1_relibra_reaches_the_schedules_of_an_actor_and_leaves_them_while_the_planner_is_away(
    frameworks_python: str,
) -> None:
    folder = frameworks.checkout("slime")
    if folder is None:
        pytest.skip(frameworks.reason("slime"))
    environment = child_process.environment(CUDA_VISIBLE_DEVICES="")
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [frameworks_python, "-m", "harness.slime.manager_under_ray"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found == {"is_own": [True, True], "failed": 2}
