"""The tables of docs/twin.md, from `results/twin.json`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import results
from benchmarks.evaluation.page import markdown
from benchmarks.twin.predict import PUBLISHED

PAGE = Path(__file__).parents[2] / "docs" / "twin.md"
_CLOSE = 0.10
"""A prediction within this part of the published figure is close."""

Row = Mapping[str, Any]

_PARTS: Mapping[str, tuple[str, Callable[[Row], str], str]] = {
    "step": ("step of balanced pre-training, s", lambda row: _job(row), ".3g"),
    "speed": ("balanced pre-training, tokens/s/GPU", lambda row: _job(row), ",.0f"),
    "share": ("share of balance at imbalance", lambda row: f"{row['model']}, {row['of']}, {row['imbalance']}", ".1%"),
    "length": ("share of balance, longer sequences", lambda row: f"{row['model']}, {row['length']:,} tokens", ".1%"),
    "replicas": ("replicas in a cell", lambda row: f"256 experts, EP 64, imbalance {row['imbalance']}", ".0f"),
    "layer": ("gain of LLEP in a layer", lambda row: f"{row['model']}, {row['hot']:.0%} to {_experts(row)}", ".2f"),
}
"""By kind: what the figure is, the settings of a row, and the format of its figures."""


def _job(row: Row) -> str:
    return f"{row['model']}, {row['gpus']} {row['hardware'].upper()}, EP {row['ep']}, {row['dispatcher']}"


def _experts(row: Row) -> str:
    return "one expert" if row["experts"] == 1 else f"{row['experts']} experts"


def error(row: Row) -> float:
    """Return how far the prediction is above the published figure, as a part of it."""
    return float(row["predicted"] / row["published"] - 1)


def is_spanned(row: Row) -> bool:
    """Return whether the published figure lies between the ends of the prediction."""
    low, high = row["predicted_range"]
    return bool(low <= row["published"] <= high)


def counts(row: Row) -> bool:
    """Return whether a row tests the model of time: it is a time, and its source gave the model no constant."""
    return row["kind"] != "replicas" and row.get("of") != "UltraEP"


def _cited(row: Row) -> str:
    repository, commit, path = PUBLISHED["sources"][row["source"]].split()
    anchor = f"?plain=1#L{row['line']}" if "line" in row else ""
    name = f"{repository.split('/')[1]}, {Path(path).name}" + (f":{row['line']}" if anchor else "")
    return f"[{name}](https://github.com/{repository}/blob/{commit}/{path}{anchor})"


def _rows() -> str:
    lines = []
    for row in results.read("twin"):
        what, settings, shown = _PARTS[row["kind"]]
        low, high = row["predicted_range"]
        predicted = f"{row['predicted']:{shown}} ({low:{shown}} to {high:{shown}})"
        found = (f"{row['published']:{shown}}", predicted, f"{error(row):+.1%}")
        lines.append((what, settings(row), *found, "" if counts(row) else "not counted", _cited(row)))
    return markdown(("figure", "settings", "published", "predicted", "error", "", "source"), lines)


def _summary() -> str:
    """Return, for each kind of figure, how many predictions are close."""
    lines = []
    counted = [row for row in results.read("twin") if counts(row)]
    groups: Sequence[tuple[str, Sequence[Row]]] = [
        *((what, [row for row in counted if row["kind"] == kind]) for kind, (what, *_) in _PARTS.items()),
        ("**all**", counted),
    ]
    for what, rows in groups:
        if rows:
            errors = [error(row) for row in rows]
            close = sum(abs(each) <= _CLOSE for each in errors)
            middle = f"{median(map(abs, errors)):.0%}"
            span = f"{min(errors):+.0%} to {max(errors):+.0%}"
            lines.append((what, len(rows), close, sum(map(is_spanned, rows)), middle, span))
    return markdown(("figure", "rows", "within 10 %", "within the range", "median error", "errors"), lines)


def _gains() -> str:
    """Return UltraEP's gain over plain expert parallelism: the figure that the evaluation reports for relibra."""
    by_model: dict[str, dict[str, Row]] = {}
    for row in results.read("twin"):
        if row["kind"] == "share":
            by_model.setdefault(row["model"], {})[row["of"]] = row
    lines = []
    for model, of in by_model.items():
        gain, predicted = (of["UltraEP"][key] / of["Megatron-LM"][key] for key in ("published", "predicted"))
        lines.append(
            (model, of["Megatron-LM"]["imbalance"], f"{gain:.2f}x", f"{predicted:.2f}x", f"{predicted / gain - 1:+.0%}")
        )
    return markdown(("model", "imbalance, plain", "published gain", "predicted", "error"), lines)


TABLES = {"summary": _summary, "gains": _gains, "rows": _rows}
