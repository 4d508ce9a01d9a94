import os
import pty
import sys

import pytest
from rich.table import Table

from harness.services import eventually
from relibra.cli import output
from relibra.cli.output import open_console, print_table, working

NAMES = ("qwen3-30b-a3b-gspo-lr1e-6-seed-17", "qwen3-30b-a3b-gspo-lr1e-6-seed-18")
OWNER = "trainer-0.trainers.rl.svc.cluster.local:4711"


def jobs() -> Table:
    """A table that needs more than 80 columns."""
    table = Table()
    table.add_column("job", no_wrap=True)
    table.add_column("launched by")
    table.add_column("reason")
    for name in NAMES:
        table.add_row(name, OWNER, "steps are trained without their plans, because ranks got them late")
    return table


def test_a_pipe_has_no_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as many CI systems set it
    console = open_console()
    print_table(console, jobs())
    console.print(" ".join(["word"] * 100))
    *table, sentence = capsys.readouterr().out.splitlines()
    rows = [line for line in table if "qwen3" in line]
    assert [
        [word in row for word in (name, OWNER, "because ranks got them late")]
        for name, row in zip(NAMES, rows, strict=True)
    ] == [[True] * 3] * 2
    assert sentence.count("word") == 100


@pytest.mark.parametrize("columns", [80, 60, 20])
def test_a_terminal_wraps_but_never_cuts_a_name(columns, monkeypatch):
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("COLUMNS", str(columns))
        console = open_console()
        print_table(console, jobs())
        assert console.width == columns
        terminal.flush()
        shown = screen.read(65536).decode()
    assert all(name in shown for name in NAMES)
    assert "…" not in shown
    cells = "".join(line.split("│")[2].strip() for line in shown.splitlines() if line.count("│") == 4)
    assert cells.count(OWNER) == len(NAMES)


def test_a_pipe_hears_what_goes_on_while_it_lasts(capsys, monkeypatch):
    monkeypatch.setattr(output._Progress, "_PAUSE_S", 0.01)
    lines = []

    def heard():
        lines.extend(capsys.readouterr().err.splitlines())
        return lines

    with working("reading") as now:
        assert heard() == ["   0 s  reading"], "at once"
        now("planning")
        eventually(lambda: sum("planning" in line for line in heard()) >= 2, within_s=60)
