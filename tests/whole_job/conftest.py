"""The environment with a real engine, and whole jobs that run there."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import child_process
from harness.services import Service, redis_server, redis_url, run, shared_planner  # noqa: F401
from harness.whole_job.job import Launch, Outcome

ENVIRONMENT = Path(__file__).parents[2] / os.environ.get("RELIBRA_WHOLE_JOB_VENV", ".venv-whole-job")


@pytest.fixture(scope="session")
def rollout_python() -> str:
    """Return the interpreter of the environment with frameworks and vLLM."""
    if not (ENVIRONMENT / "ready").exists():
        pytest.skip("no environment with a rollout engine: make test-rollout builds it in .venv-whole-job")
    return str(ENVIRONMENT / "bin" / "python")


@pytest.fixture(scope="session")
def prepared(rollout_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, prompts and an agent loop."""
    folder = tmp_path_factory.mktemp("whole-job")
    environment = child_process.environment(CUDA_VISIBLE_DEVICES="", VERL_USE_EXTERNAL_MODULES="")
    subprocess.run([rollout_python, "-m", "harness.whole_job.prepare", str(folder)], check=True, env=environment)
    return folder


@pytest.fixture(scope="session")
def launch(rollout_python: str, prepared: Path, shared_planner: Service) -> Callable[..., Outcome]:  # noqa: F811
    """Return a function that runs a job of a kind and a name, with the plug-in.

    With `replays`, the outcome of a job whose samples were kept, it runs the framework alone on the same samples.
    """

    def launched(kind: type[Launch], name: str, *, replays: Outcome | None = None, **settings: Any) -> Outcome:
        same = {"planner": shared_planner.address} if replays is None else {"replays": replays.folder.name}
        return kind(folder=prepared, name=name, **(same | settings)).run(rollout_python)

    return launched
