"""The command tree, and the one place where errors become messages."""

import sys

import typer
from rich.console import Console

from relibra.cli import advise, calibrate, demo, jobs, plan, planner, record, simulate, status, tokens, trace, up
from relibra.errors import RelibraError

app = typer.Typer(
    help="Balancing control plane for Mixture-of-Experts RL training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for verb in (
    up.up,
    planner.planner,
    status.status,
    plan.plan,
    simulate.simulate,
    advise.advise,
    calibrate.calibrate,
    record.record,
    demo.demo,
):
    app.command()(verb)
app.add_typer(jobs.app, name="jobs")
app.add_typer(tokens.app, name="tokens")
app.add_typer(trace.app, name="trace")


def run() -> None:
    """Run the command line; a relibra error is a message and exit status 2, never a traceback."""
    try:
        app()
    except RelibraError as error:
        console = Console(stderr=True, soft_wrap=True)
        console.print(type(error).__name__, style="bold red", end=" ")
        # Not markup: a text may say `[T, L, K]`.
        console.print(str(error), markup=False, highlight=False)
        sys.exit(2)
