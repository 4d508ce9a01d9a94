"""What the training processes of a whole job do besides training, whatever the framework."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.whole_job.variables import OUTCOMES, OWN_MACHINES


def install() -> None:
    """Do what the variables of this process say. Call it after the stand-ins for GPUs."""
    if OUTCOMES in os.environ:
        _write_outcomes(Path(os.environ[OUTCOMES]))
    if OWN_MACHINES in os.environ:
        _pretend_own_machine()


def _write_outcomes(folder: Path) -> None:
    from harness import trained
    from relibra.agent import Agent

    trained.wait_for_plans()
    begin = Agent.begin_step

    def begin_step(*args: Any, **kwargs: Any) -> Any:
        outcome = begin(*args, **kwargs)
        with Path(folder, f"rank{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(json.dumps(trained.result_of(outcome)) + "\n")
        return outcome

    Agent.begin_step = begin_step  # type: ignore[method-assign]


def _pretend_own_machine() -> None:
    from relibra.plugins import nodes

    nodes.socket = SimpleNamespace(gethostname=lambda: f"node-{os.environ['RANK']}")  # type: ignore[assignment]
