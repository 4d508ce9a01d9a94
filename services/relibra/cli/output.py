"""The output of verbs: tables or JSON on standard output, and progress on standard error."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from relibra.errors import InvalidInput

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_json(value: Any) -> None:
    """Print a JSON document to standard output."""
    typer.echo(json.dumps(value, indent=2))


@contextmanager
def writing(option: str) -> Iterator[None]:
    """Refuse the value of `option` if the file that it names cannot be written.

    Raises:
        InvalidInput: writing failed; what was there before stays as it was.
    """
    try:
        yield
    except OSError as error:
        raise InvalidInput.of(option, expected="a file that can be written", got=error) from error


@contextmanager
def working(on: str) -> Iterator[Callable[[str], None]]:
    """Show the current work and its duration; yield the function that announces the next piece of work."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(on)
        yield lambda on: progress.update(task, description=on)
