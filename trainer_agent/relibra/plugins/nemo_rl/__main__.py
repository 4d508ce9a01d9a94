"""`python -m relibra.plugins.nemo_rl SCRIPT ...` runs a script of NeMo-RL as `python SCRIPT ...` does, with relibra."""

import os
import runpy
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from relibra.plugins.nemo_rl.launch import install
from relibra.plugins.settings import VARIABLES, job_name


def default_job(arguments: Sequence[str]) -> str:
    """Return the name of a job that nobody names: the run's name at W&B if it is an argument, or the recipe's.

    Args:
        arguments: the script and its arguments; without a recipe, the job has the name of the script.
    """
    spaced = (f"{name}={value}" for name, value in pairwise(arguments) if name == "--config")
    values = {name.lstrip("-+"): value for name, _, value in (each.partition("=") for each in [*arguments, *spaced])}
    recipe = Path(values.get("config") or arguments[0]).stem
    return job_name(values.get("logger.wandb.name") or recipe, default="nemo-rl")


def main(arguments: list[str]) -> None:
    """Install the plug-in, and run the script with its arguments.

    Workers get the variables of this process from NeMo-RL, and so the name of the job.
    """
    if not arguments:
        sys.exit("expected a script of NeMo-RL, as in: python -m relibra.plugins.nemo_rl examples/run_grpo.py")
    install()
    os.environ[VARIABLES["job"]] = os.environ.get(VARIABLES["job"]) or default_job(arguments)
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).resolve().parent)  # as python does for a script
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
