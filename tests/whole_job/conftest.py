"""The environment with a real engine, and whole jobs that ran there."""

import os
import subprocess
from pathlib import Path

import pytest

from harness import child_process
from harness.services import Service, run, shared_planner  # noqa: F401
from harness.whole_job.verl_job import Job, Outcome

ENVIRONMENT = Path(__file__).parents[2] / os.environ.get("RELIBRA_WHOLE_JOB_VENV", ".venv-whole-job")


@pytest.fixture(scope="session")
def rollout_python() -> str:
    """Return the interpreter of the environment with frameworks and vLLM."""
    if not (ENVIRONMENT / "ready").exists():
        pytest.skip("no environment with a rollout engine: make test-rollout builds it in .venv-whole-job")
    return str(ENVIRONMENT / "bin" / "python")


@pytest.fixture(scope="session")
def prepared(rollout_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, prompts and a reward."""
    folder = tmp_path_factory.mktemp("whole-job")
    environment = child_process.environment(CUDA_VISIBLE_DEVICES="", VERL_USE_EXTERNAL_MODULES="")
    subprocess.run([rollout_python, "-m", "harness.whole_job.prepare", str(folder)], check=True, env=environment)
    return folder


@pytest.fixture(scope="session")
def balanced(rollout_python: str, prepared: Path, shared_planner: Service) -> Outcome:  # noqa: F811
    """A job with the plug-in, whose samples are kept."""
    return Job(folder=prepared, name="balanced", planner=shared_planner.address).run(rollout_python)


@pytest.fixture(scope="session")
def plain(rollout_python: str, prepared: Path, balanced: Outcome) -> Outcome:
    """verl alone, on the same samples."""
    return Job(folder=prepared, name="plain", replays=True).run(rollout_python)
