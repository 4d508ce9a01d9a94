"""Write the figures of all cases, and of the runs on recorded routing, into docs/clock.md from the results.

python -m benchmarks.wall_clock.table
"""

import json
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.evaluation.page import markdown, write_tables


def wall_clock() -> str:
    """Return a line for every case that has been measured."""
    rows = [json.loads(path.read_text())["rows"][0] for path in results.RESULTS.glob("wall_clock-*.json")]
    rows.sort(key=lambda row: (row["ranks"], row["network_mbit"] or 0, row["tokens"], row["sigma"]))
    headings = (
        "ranks",
        "network",
        "tokens",
        "skew",
        "plain",
        "of balance",
        "predicted",
        "gain",
        "predicted",
        "gain is off by",
    )
    return markdown(headings, [_line(row) for row in rows])


def _line(row: dict[str, Any]) -> tuple[object, ...]:
    predicted = row["predicted"]
    return (
        row["ranks"],
        f"{row['network_mbit']} Mbit/s" if row["network_mbit"] else "memory",
        row["tokens"],
        row["sigma"],
        f"{predicted['plain_imbalance']:.2f}",
        f"{row['of_balance']:.1%}",
        f"{predicted['of_balance']:.1%}",
        f"{row['gain']:.3f}x",
        f"{predicted['gain']:.3f}x",
        f"{predicted['gain'] / row['gain'] - 1:+.1%}",
    )


def _runs() -> list[tuple[str, dict[str, Any]]]:
    """Return the runs on recorded routing by name, that before all others first."""
    paths = results.RESULTS.glob("wall_clock_recorded-*.json")
    found = [(path.stem.partition("-")[2], json.loads(path.read_text())["rows"][0]) for path in paths]
    return sorted(found, key=lambda each: (each[0] != "before", each[0]))


def unexplained_s(row: dict[str, Any]) -> float:
    """Return the seconds of a balanced step beyond the predicted ones, with measured waits for plans and moves."""
    predicted, waited_s = row["predicted"], row["waited_s"]
    known_s = predicted["relibra_s"] - predicted["planning_s"] - predicted["reorder_s"]
    return float(row["step_s"]["relibra"] - known_s - waited_s["plan_wait_s"] - waited_s["reorder_s"])


def accounts() -> str:
    """Return, for every run on recorded routing, what is missing in the predicted steps."""
    lines = []
    for run, row in _runs():
        if run == "before":
            continue
        predicted, measured_s, left_s = row["predicted"], row["step_s"], unexplained_s(row)
        lines.append(
            (
                run,
                f"{measured_s['plain']:.2f}",
                f"{predicted['plain_s'] / measured_s['plain'] - 1:+.1%}",
                f"{measured_s['relibra']:.2f}",
                f"{predicted['relibra_s'] / measured_s['relibra'] - 1:+.1%}",
                *(f"{1e3 * predicted[name]:.0f} / {1e3 * row['waited_s'][waited]:.0f}" for name, waited in _WAITS),
                f"{1e3 * left_s:.0f} ({left_s / measured_s['relibra']:.1%})",
            )
        )
    headings = ("run", "plain step, s", "predicted", "relibra's step, s", "predicted", *_WAIT_HEADINGS, "left, ms")
    return markdown(headings, lines)


_WAITS = (("planning_s", "plan_wait_s"), ("reorder_s", "reorder_s"))
_WAIT_HEADINGS = ("planning, predicted / measured ms", "moves, predicted / measured ms")


def recorded() -> str:
    """Return what the simulator said `before` of the runs on recorded routing, and a line for every run after that."""
    lines = []
    for run, row in _runs():
        predicted = row["predicted"]
        measured = (
            f"{row['of_balance']:.1%}",
            f"{row['gain']:.3f}x",
            "{:.3f}x to {:.3f}x".format(*row["gain_quartiles"]),
        )
        lines.append(
            (
                run,
                f"{predicted['plain_imbalance']:.2f}",
                f"{predicted['experts_share']:.0%}",
                *(("", "", "") if run == "before" else measured),
                f"{predicted['of_balance']:.1%}",
                f"{predicted['gain']:.3f}x",
            )
        )
    headings = ("run", "plain", "experts", "of balance", "gain", "quartiles", "predicted of balance", "predicted gain")
    return markdown(headings, lines)


TABLES = {"wall_clock": wall_clock, "wall_clock_recorded": recorded, "wall_clock_accounts": accounts}


if __name__ == "__main__":
    write_tables(Path(__file__).parents[2] / "docs" / "clock.md", TABLES)
