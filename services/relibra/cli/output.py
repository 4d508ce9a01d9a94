"""The output of verbs: tables or JSON on standard output, and progress on standard error.

A terminal has a width, a pipe has none. In a pipe nothing is wrapped or cut, so that `grep` finds whole lines.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from relibra.errors import InvalidInput

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_UNBOUNDED = 100_000
"""The width of a pipe."""


def print_json(value: Any) -> None:
    """Print a JSON document to standard output."""
    typer.echo(json.dumps(value, indent=2))


def hours_text(hours: float) -> str:
    """Return a number of hours for people, without the sign of what rounds to nothing."""
    return f"{round(hours, 3) + 0.0:,.3f}"


def open_console(*, stderr: bool = False) -> Console:
    """Return a console that is as wide as its terminal, or unbounded if it writes to a pipe or a file."""
    width = None if is_terminal(sys.stderr if stderr else sys.stdout) else _UNBOUNDED
    return Console(stderr=stderr, width=width, highlight=False)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a person reads the stream; colours forced by the environment do not make a pipe a terminal."""
    return stream.isatty()


def print_table(console: Console, table: Table) -> None:
    """Print a table with every cell in full.

    Cells wrap and fold. Columns with `no_wrap` hold the names that tell rows apart and keep their width. Where the
    words of a row need more than the terminal has, the lines of the table are longer than the terminal.
    """
    for column in table.columns:
        column.overflow = "fold"
        if column.no_wrap:
            lines = [line for cell in (column.header, *column.cells) for line in str(cell).splitlines()]
            column.min_width = max(map(cell_len, lines), default=0)
    width = console.width
    needed = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).minimum
    console.width = max(width, needed)
    console.print(table)
    console.width = width


def print_rows(
    console: Console,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    best: Sequence[str] | None = None,
) -> None:
    """Print rows as a table, and the row `best` in bold green.

    A heading begins with `>` if its column holds numbers, and with `!` if it holds the names that tell rows apart.
    Without headings the table has no lines.
    """
    has_head = any(heading.strip("!>") for heading in headings)
    table = Table(title=title, title_justify="left", box=SIMPLE if has_head else None, show_header=has_head)
    table.padding = (0, 2, 0, 0)
    for heading in headings:
        table.add_column(
            heading.lstrip("!>"), justify="right" if ">" in heading[:1] else "left", no_wrap="!" in heading[:1]
        )
    for row in rows:
        table.add_row(*row, style="bold green" if row is best else None)
    print_table(console, table)


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
