"""Results on disk as tables of a page, which marks the place of each table by `<!-- name -->` and `<!-- /name -->`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results

Row = dict[str, Any]


def cases(part: str, *keys: str) -> list[tuple[Row, dict[str, Row]]]:
    """Group the rows of a part by the given keys; return (the keys' values, rows by policy) for each group."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in results.read(f"evaluation-{part}"):
        found.setdefault(tuple(row[key] for key in keys), {})[row["policy"]] = row
    return [(dict(zip(keys, case, strict=True)), by_policy) for case, by_policy in found.items()]


def markdown(headings: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table with numbers to the right."""
    rule = ["---"] + ["---:"] * (len(headings) - 1)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (headings, rule, *lines))


def write_table(page: Path, table: Callable[[], str]) -> None:
    """Replace the table on the page that has the function's name."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {table.__name__} -->\n", f"<!-- /{table.__name__} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} has no place for the table {table.__name__}: expected {begin.strip()} and {end}")
    page.write_text(f"{before}{begin}\n{table()}\n\n{end}{after}", encoding="utf-8")
