"""Write the tables of docs/peers.md from `results/peers.json`.

    python -m benchmarks.peers.tables

Planners are the rows, and cases are the columns.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.evaluation.cases import DISPATCHERS
from benchmarks.evaluation.page import markdown, write_tables
from benchmarks.peers.checkouts import CHECKOUTS
from benchmarks.peers.run import PEERS, REIMPLEMENTED
from relibra.planning.machines.dispatcher import Dispatcher

_PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
_NAMES = {
    "plain": "plain expert parallelism",
    "relibra": "**relibra**",
    "replicate-only": "relibra, replication alone",
    REIMPLEMENTED: "UltraEP on the GPU, reimplemented",
}

Row = Mapping[str, Any]


def matrix(rows: Sequence[Row], shown: Callable[[Row], str], names: Sequence[str]) -> str:
    """Return a table with a row for each planner, and a column for each case.

    Args:
        rows: the results.
        shown: what a cell of the table says.
        names: the planners, in their order. One without results was left out, and its row says so.
    """
    cases = list(dict.fromkeys((row["model"], row["ep"]) for row in rows))
    by_place = {(row["planner"], row["model"], row["ep"]): row for row in rows}
    lines = []
    for name in names:
        found = [by_place.get((name, *case)) for case in cases]
        lines.append([_NAMES.get(name, name), *("left out" if row is None else shown(row) for row in found)])
    return markdown(("planner", *(f"{model}, EP {ep}" for model, ep in cases)), lines)


def _of(names: Sequence[str], shown: Callable[[Row], str], dispatcher: Dispatcher = DISPATCHERS[0]) -> str:
    return matrix([row for row in results.read("peers") if row["dispatcher"] == dispatcher.value], shown, names)


def _versions() -> str:
    """Return what ran: repository, version, file and its digest; and what did not run, and why."""
    settings = results.settings("peers")
    lines = []
    for peer in PEERS:
        ran = settings["files"].get(peer.name)
        file, digest = ran.rsplit(" ", 1) if ran else (peer.file, "")
        source = CHECKOUTS[peer.checkout]
        what = f"`{digest[:16]}`" if ran else f"**left out**: {settings['left_out'][peer.name]}"
        lines.append((peer.name, f"[{peer.checkout}]({source.address})", source.version[:12], f"`{file}`", what))
    return markdown(("planner", "repository", "version", "file", "SHA-256 of what ran"), lines)


def _same(row: Row) -> str:
    """Return how far our reimplementation equals the original, and how much higher its imbalance is."""
    return f"{row['same_as_ours']:.1%} ({row['imbalance_of_ours'] - row['imbalance']:+.4f})"


def _of_balanced(row: Row) -> str:
    return f"{row['of_balanced']:.1%}"


_ALL = ("plain", "relibra", "replicate-only", REIMPLEMENTED, *(peer.name for peer in PEERS))
_TIMED = tuple(name for name in _ALL if name not in ("plain", REIMPLEMENTED))
_REIMPLEMENTED = tuple(peer.name for peer in PEERS if peer.ours is not None)
TABLES = {
    "imbalances": lambda: _of(_ALL, lambda row: f"{row['imbalance']:.3f}"),
    "time_with_alltoall": lambda: _of(_ALL, _of_balanced, Dispatcher.ALLTOALL),
    "time_with_deepep": lambda: _of(_ALL, _of_balanced, Dispatcher.DEEPEP),
    "decisions": lambda: _of(_TIMED, lambda row: f"{row['cpu_us_per_decision']:,.0f}"),
    "step_times": lambda: _of(_TIMED, lambda row: f"{row['cpu_ms']:,.0f}"),
    "moves": lambda: _of(_ALL, lambda row: f"{row['num_moved_experts']:,} / {row['replicas_per_cell']:.1f}"),
    "reimplementations": lambda: _of(_REIMPLEMENTED, _same),
    "versions": _versions,
}

if __name__ == "__main__":
    write_tables(_PAGE, TABLES)
