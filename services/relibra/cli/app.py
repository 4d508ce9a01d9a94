"""The command tree, and the one place where errors become messages."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from relibra.cli import (
    advise,
    calibrate,
    demo,
    diff,
    doctor,
    explain,
    jobs,
    plan,
    planner,
    record,
    show,
    simulate,
    status,
    steps,
    tokens,
    trace,
    up,
)
from relibra.errors import RelibraError

_TRACEBACK = "RELIBRA_TRACEBACK"

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
for verb in (
    up.up,
    planner.planner,
    status.status,
    demo.demo,
    doctor.doctor,
    record.record,
    advise.advise,
    simulate.simulate,
    plan.plan,
    calibrate.calibrate,
    steps.steps,
    show.show,
    explain.explain,
    diff.diff,
):
    app.command()(verb)
app.add_typer(jobs.app, name="jobs")
app.add_typer(tokens.app, name="tokens")
app.add_typer(trace.app, name="trace")


@app.callback()
def relibra(
    traceback: Annotated[
        bool, typer.Option("--traceback", envvar=_TRACEBACK, help="Show where an error comes from.")
    ] = False,
) -> None:
    """Balancing control plane for Mixture-of-Experts RL training."""
    # For `run`, and for the services that `relibra up` starts.
    os.environ[_TRACEBACK] = "1" if traceback else ""


def run() -> None:
    """Run the command line: an error is a message and exit status 2, or 3 where relibra itself is at fault."""
    try:
        app()
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        console = Console(stderr=True, soft_wrap=True)
        console.print(type(error).__name__, style="bold red", end=" ")
        # Not markup: a text may say `[T, L, K]`.
        console.print(str(error), markup=False, highlight=False)
        if isinstance(error, RelibraError):
            sys.exit(2)
        console.print(f"This is a fault of relibra: {_TRACEBACK}=1 shows where, to report it.", highlight=False)
        sys.exit(3)
