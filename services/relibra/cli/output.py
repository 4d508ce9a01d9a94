"""What verbs print: tables for people or JSON for programs, and beside either, on standard error, that work goes on."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(value: Any) -> None:
    """Print a document and nothing else."""
    typer.echo(json.dumps(value, indent=2))


@contextmanager
def working(on: str) -> Iterator[Callable[[str], None]]:
    """Show what is being worked on, and for how long; yields the function that says what comes next."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(on)
        yield lambda on: progress.update(task, description=on)
