"""The output of verbs: tables or JSON on standard output, and progress on standard error.

A terminal has a width, a pipe has none. In a pipe nothing is wrapped or cut, so that `grep` finds whole lines.
"""

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer
from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
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
def working(on: str, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Say what goes on, on a terminal and in a pipe; yield the function that announces the next piece of work.

    Work gets a line when it begins, unless the line before is of the same second, and one every few seconds that it
    lasts. Lines go to standard error by default.
    """
    progress = _Progress(console or Console(stderr=True), on)
    ticks = threading.Thread(target=progress.tick, daemon=True)
    ticks.start()
    try:
        yield progress.now
    finally:
        progress.end.set()
        ticks.join()


class _Progress:
    _PAUSE_S = 5.0

    def __init__(self, console: Console, on: str) -> None:
        self.end = threading.Event()
        self._console = console
        self._lock = threading.Lock()
        self._start_s = time.monotonic()
        self._said_s = -math.inf
        self.now(on)

    def now(self, on: str) -> None:
        """Announce a piece of work."""
        with self._lock:
            self._on = on
            self._say(after_s=1.0)

    def tick(self) -> None:
        """Say what goes on where no line is new, until `end` is set."""
        while not self.end.wait(self._PAUSE_S / 5):
            with self._lock:
                self._say(after_s=self._PAUSE_S)

    def _say(self, after_s: float) -> None:
        time_s = time.monotonic()
        if time_s - self._said_s >= after_s:
            self._said_s = time_s
            self._console.print(f"{time_s - self._start_s:4.0f} s  {self._on}", highlight=False, soft_wrap=True)
