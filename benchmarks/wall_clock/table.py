"""Write the figures of all cases, and of the runs on recorded routing, into docs/simulation.md from the results.

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


def recorded() -> str:
    """Return what the simulator said `before` of the runs on recorded routing, and a line for every run after that."""
    lines = []
    for path in sorted(
        results.RESULTS.glob("wall_clock_recorded-*.json"), key=lambda path: ("before" not in path.stem, path.stem)
    ):
        row = json.loads(path.read_text())["rows"][0]
        run, predicted = path.stem.partition("-")[2], row["predicted"]
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


TABLES = {"wall_clock": wall_clock, "wall_clock_recorded": recorded}


if __name__ == "__main__":
    write_tables(Path(__file__).parents[2] / "docs" / "simulation.md", TABLES)
