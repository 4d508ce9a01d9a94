"""Results on disk as tables of a page, which marks the place of each table by `<!-- name -->` and `<!-- /name -->`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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


def write_tables(page: Path, tables: Mapping[str, Callable[[], str]]) -> None:
    """Replace tables on the page, by name."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, opened, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not opened or not closed:
            raise SystemExit(f"{page} has no place for the table {name}: expected {begin.strip()} and {end}")
        text = f"{before}{begin}\n{table()}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")
