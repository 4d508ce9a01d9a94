"""The command tree, and the one place that turns errors into messages."""

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from relibra.cli.lazy_verbs import group_of
from relibra.environment import complaint, unknown_variables
from relibra.errors import RelibraError

_TRACEBACK = "RELIBRA_TRACEBACK"

_VERBS = (
    "up",
    "planner",
    "status",
    "demo",
    "doctor",
    "record",
    "advise",
    "simulate",
    "plan",
    "calibrate",
    "steps",
    "show",
    "explain",
    "diff",
    "jobs",
    "tokens",
    "trace",
)

app = typer.Typer(cls=group_of(*_VERBS), no_args_is_help=True, pretty_exceptions_enable=False)

_LOGGING = {"up", "planner", "status"}
"""The verbs that log, and name misspelt variables there."""


@app.callback()
def relibra(
    context: typer.Context,
    traceback: Annotated[
        bool, typer.Option("--traceback", envvar=_TRACEBACK, help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Balancing control plane for Mixture-of-Experts RL training."""
    # `run` and the services that `relibra up` starts read this.
    os.environ[_TRACEBACK] = "1" if traceback else ""
    if context.invoked_subcommand not in _LOGGING:
        for name, nearest in unknown_variables(os.environ).items():
            if nearest is not None:
                typer.echo(f"Warning: {complaint(name, nearest)}", err=True)


def run() -> None:
    """Run the command line. An error prints a message and exits with status 2, or with 3 if it is a bug in relibra."""
    try:
        app()
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        console = Console(stderr=True, soft_wrap=True)
        console.print(type(error).__name__, style="bold red", end=" ")
        # No markup, because messages contain shapes such as `[T, L, K]`.
        console.print(str(error), markup=False, highlight=False)
        if isinstance(error, RelibraError):
            sys.exit(2)
        console.print(
            f"This is a bug in relibra. Please report it with the traceback that {_TRACEBACK}=1 shows.", highlight=False
        )
        sys.exit(3)
