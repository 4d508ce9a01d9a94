"""Every figure on a page equals the figure in its result file."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from benchmarks import placement_gap, results, slots
from benchmarks.evaluation import low_ends
from benchmarks.evaluation import tables as evaluation
from benchmarks.long_sequences.measure import long_sequences
from benchmarks.peers import tables as peers
from benchmarks.rl_drift import rl_drift
from benchmarks.twin import tables as twin_tables
from benchmarks.wall_clock import table as wall_clock
from harness.doc_blocks import REPOSITORY

DOCS = REPOSITORY / "docs"
Row = Mapping[str, Any]
Cells = tuple[str, ...]

GENERATED: Mapping[Path, Mapping[str, Callable[[], str]]] = {
    **evaluation.TABLES,
    DOCS / "simulation.md": evaluation.SIMULATION | {"long_sequences": long_sequences, "rl_drift": rl_drift},
    DOCS / "clock.md": wall_clock.TABLES,
    DOCS / "peers.md": peers.TABLES,
    DOCS / "optimality.md": {"slots": slots.slots, "placements": placement_gap.placements},
    twin_tables.PAGE: twin_tables.TABLES,
}


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page, tables in GENERATED.items() for name in tables], ids=str
)
def test_a_generated_table_is_that_of_its_results(page: Path, name: str) -> None:
    shown = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    assert shown.strip() == GENERATED[page][name]()


def table(page: str, heading: str) -> list[Cells]:
    """Return the cells of the table whose first line begins with `heading`, without bold type."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(heading)
    assert found, f"{page} has no table that begins with {heading}"
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [tuple(cell.strip().replace("**", "") for cell in line.strip("|").split("|")) for line in lines]


def seconds(value: float) -> str:
    """Return two significant digits."""
    return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s"


def milliseconds(value: float) -> str:
    return f"{value:.1f} ms" if value < 9.95 else f"{value:.0f} ms"


def balance_row(row: Row) -> Cells:
    keys = ("plain", "eplb_oracle", "replay", "replay_worst", "bound", "any_placement")
    trace = row["trace"].partition("_")[0]
    return (trace, f"{row['num_nodes']}x8", str(row["num_micro_batches"]), *(f"{row[key]:.4f}" for key in keys))


def test_balance_on_real_routing() -> None:
    expected = {balance_row(row) for row in results.read("imbalance") if row["steps"] == "whole"}
    shown, trace = set[Cells](), ""
    for cells in table("docs/benchmarks.md", "| trace | nodes | micro-batches |"):
        trace = cells[0] or trace  # a row without a trace is of the trace above
        shown.add((trace, *cells[1:]))
    assert shown <= expected
    assert {cells[:2] for cells in shown} == {cells[:2] for cells in expected}, "all recordings on all nodes"


def test_levels() -> None:
    keys = ("plain", "eplb_history", "history", "step", "rollout", "eplb_oracle", "replay")
    expected = {
        (f"{row['num_nodes']}x8", *(f"{row[key]:.3f}" for key in keys))
        for row in results.read("imbalance")
        if row["steps"] != "whole"
    }
    shown = [cells[1:] for cells in table("docs/integrations/levels.md", "| trace | nodes | plain | EPLB, history |")]
    assert set(shown) <= expected
    assert {cells[0] for cells in shown} == {cells[0] for cells in expected}
    assert len(shown) == len(set(shown))


def scale_row(row: Row) -> Cells:
    return (
        f"{row['num_cells']:,}",
        f"{row['planned']:.4f}",
        f"{row['bound']:.4f}",
        seconds(row["plan_time_s"]),
        f"{row['plan_us_per_cell']:.0f} us",
        f"{row['replicate_us_per_cell']:.0f} us",
        seconds(row["publish_s"]),
        milliseconds(row["begin_ms"]),
        f"{row['peak_mib']:,.0f} MiB",
    )


def test_time_and_memory_of_planning() -> None:
    expected = {scale_row(row) for row in results.read("scale")}
    for name, *shown in table("docs/benchmarks.md", "| step | cells | planned |"):
        assert tuple(shown) in expected, name


def test_many_jobs() -> None:
    expected = [
        (
            f"{row['steps_per_s']:.0f}",
            f"{row['planner_ms']:.1f} ms",
            f"{row['plan_p50_s']:.2f} / {row['plan_p99_s']:.2f} s",
            f"{row['idle_percent']:.0f} %",
            f"{row['scrape_ms']:.0f} ms" if row["scrape_ms"] < 1000 else f"{row['scrape_ms'] / 1000:.1f} s",
            f"{row['planner_mib']:.0f} MiB",
        )
        for row in results.read("jobs")
    ]
    assert [cells[1:] for cells in table("docs/benchmarks.md", "| jobs | steps per second |")] == expected


def test_gaps_to_the_optimum() -> None:
    expected = [
        (
            f"{100 * row['without_replicas']:.1f} % above",
            *(f"{100 * row[key]:.{digits}f} %" for key, digits in GAPS),
        )
        for row in results.read("gap")
    ]
    assert [cells[1:] for cells in table("docs/optimality.md", "| cells | without replicas |")] == expected


GAPS = (("planned", 3), ("planned_worst", 2), ("bound", 3), ("bound_worst", 2))


def test_how_near_placements_are_to_the_best() -> None:
    rows = results.read("placement_gap")
    text = re.sub(r"\s+", " ", (DOCS / "optimality.md").read_text(encoding="utf-8"))
    assert all(row["proven"] == row["layers"] for row in rows)
    assert f"Of {sum(row['layers'] for row in rows)} layers" in text
    worst = f"{max(row['planned_worst'] for row in rows):.2%}".replace("%", " %")
    assert f"missed by {worst} at worst" in text
    assert f"the floor 0 % to {100 * max(row['floor_worst'] for row in rows):.0f} % below" in text


def test_a_whole_job() -> None:
    of_job = {job: [row for row in results.read("whole_job") if row["job"] == job] for job in ("balanced", "plain")}
    shown = {name: cells for name, *cells in table("docs/whole-job.md", "| | balanced | plain |")}
    for column, rows in enumerate(of_job.values()):
        reward = [row["reward"] for row in rows]
        memory = ", ".join(f"{rows[step - 1]['host_memory_gb']:.2f}" for step in (30, 100, 199))
        apart = f"{max(row['engine_against_trainer'] for row in rows):.1e}".replace("e-0", "e-")
        of_column = {name: cells[column] for name, cells in shown.items()}
        assert f"{mean(reward[:20]):.2f}, {mean(reward[180:]):.2f}" in of_column.values()
        assert f"{memory} GB" in of_column.values()
        assert apart in of_column.values()


def only(rows: Iterable[Row], **where: object) -> Row:
    (row,) = (row for row in rows if all(row[key] == value for key, value in where.items()))
    return row


def span(row: Row, key: str, digits: int) -> tuple[str, str]:
    low, high = row[f"{key}_range"]
    return f"{row[key]:.{digits}f}x", f"{low:.{digits}f}x to {high:.{digits}f}x"


def over_best_published(rows: Sequence[Row], ours: Row) -> float:
    others = [row for row in rows if all(row[key] == ours[key] for key in ("model", "ep", "dispatcher"))]
    return ours["of_balanced"] / max(row["of_balanced"] for row in others if row["policy"] in evaluation.PUBLISHED)


def test_the_readme() -> None:
    shown = {name: cells for name, *cells in table("README.md", "| figure | number | range |")}
    case = {"model": "gpt-oss-20b", "ep": 16, "dispatcher": "alltoall"}
    presets, balance = results.read("evaluation-presets"), results.read("imbalance")
    ours, plain = (only(presets, policy=policy, **case) for policy in ("relibra", "plain"))
    figures = [number for number, *_ in shown.values()]
    alike = only(balance, trace="gpt-oss-20b_mmlu", steps="alike", num_nodes=2)
    for value in (f"{alike['plain']:.2f}", f"{alike['history']:.3f}", f"{alike['replay']:.3f}"):
        assert value in figures
    assert f"{ours['imbalance']:.3f}" in figures
    assert f"{plain['cum_overload']:.2f} plain, {ours['cum_overload']:.3f} planned" in figures
    gain, ends = span(ours, "over_plain", 2)
    assert gain in figures
    assert any(ends in " ".join(cells) for cells in shown.values())
    leads = [over_best_published(presets, row) for row in presets if row["policy"] == "relibra"]
    readme = re.sub(r"\s+", " ", (REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert f"over the best of them the simulation gives {min(leads):.2f}x to {max(leads):.2f}x" in readme
    gains = [json_row["gain"] for path in wall_clock_files() for json_row in results.read(path)]
    assert f"{min(gains):.2f}x to {max(gains):.2f}x" in " ".join(shown["the same, of seven cases on two CPU ranks"])
    assert len(gains) == 7
    assert f"{median(gains):.2f}x" in figures
    assert seconds(only(results.read("scale"), case="target")["plan_time_s"]) in figures


def test_the_page_says_how_many_low_ends_reach_96_per_cent() -> None:
    ours = [row for row in results.read("evaluation-presets") if row["policy"] == "relibra"]
    reached = [row for row in ours if row["of_balanced_range"][0] >= 0.96]
    assert not any(row["model"] == "gpt-oss-20b" for row in reached)
    between = [[row for row in rows if row["ep"] > 8 and row["dispatcher"] == "alltoall"] for rows in (reached, ours)]
    text = re.sub(r"\s+", " ", (DOCS / "evaluation.md").read_text(encoding="utf-8"))
    assert f"reaches 96 % in {len(reached)} of {len(ours)} rows" in text
    assert f"over nodes in only {len(between[0])} of {len(between[1])} rows" in text


def test_the_page_says_what_keeps_low_ends_below_96_per_cent() -> None:
    rows = results.read("evaluation-low_ends")
    where = ("model", "ep", "dispatcher", "low_end")
    assert {tuple(row[key] for key in where) for row in rows} == {
        tuple(row[key] for key in where) for row in low_ends.below()
    }
    for row in rows:
        assert sum(row[part] for part in low_ends.PARTS) == pytest.approx(1 - row["low_end"], abs=1e-6)
    decides = Counter(map(low_ends.deciding, rows))
    without = min(row["low_end"] / (1 - row[low_ends.deciding(row)]) for row in rows)
    text = re.sub(r"\s+", " ", (DOCS / "evaluation-parts.md").read_text(encoding="utf-8"))
    said = "**Dispatch decides in {dispatch} rows, transfers in {transfers}, tiles in {tiles} and moves in {moves}.**"
    assert said.format(**decides) in text
    assert sum(decides[part] for part in ("dispatch", "transfers", "tiles", "moves")) == len(rows)
    assert f"would be at {100 * without:.1f} % or more" in text
    assert f"Imbalance is at most {100 * max(row['imbalance'] for row in rows):.1f} %" in text


def test_what_the_page_says_of_drift_in_rl() -> None:
    one, two = ([row for row in results.read("rl_drift") if row["num_nodes"] == nodes] for nodes in (1, 2))

    def said(rows: Sequence[Row], key: str, digits: int) -> str:
        return " to ".join(f"{end(row[key] for row in rows):.{digits}f}" for end in (min, max))

    text = re.sub(r"\s+", " ", (DOCS / "simulation.md").read_text(encoding="utf-8"))
    assert f"moves popularity by {said(one, 'sigma', 2)} in 16 steps" in text
    assert f"sampling alone would make {said(one, 'sigma_sampling', 2)}" in text
    assert f"{100 * one[-1]['sigma'] / 16:.1f} % in the last round" in text
    assert f"they leave {said(one, 'round_before', 3)} on one node, and {said(two, 'round_before', 2)} on two" in text
    assert f"they leave {one[-1]['first_round']:.2f} and {two[-1]['first_round']:.2f}." in text
    assert f"history leaves {said(one, 'history', 2)} on one node and {said(two, 'history', 2)} on two" in text
    replays = (f"{max(row['replay'] for row in rows):.3f}" for rows in (one, two))
    assert f"replay leaves {' and '.join(replays)}." in text


def test_what_the_page_says_of_a_prediction_that_missed() -> None:
    rows = [results.read(f"wall_clock_recorded-{run}")[0] for run in (1, 2)]
    checksums = results.read("wall_clock_checksums")
    text = re.sub(r"\s+", " ", (DOCS / "clock.md").read_text(encoding="utf-8"))
    low, high = (1e3 * end(row["cpu_s"] for row in checksums) for end in (min, max))
    assert {row["passes"] for row in checksums} == {4}
    assert f"four times a step, {results.settings('wall_clock_checksums')['bytes_of_a_pass'] / 1e6:.0f} MB each" in text
    assert f"takes {low:.0f} to {high:.0f} ms of a rank's processor" in text
    assert all(wall_clock.unexplained_s(row) < high / 1e3 for row in rows), "checksums may explain all that is left"
    too_slow = sorted(
        row["predicted"]["planning_s"] + row["predicted"]["reorder_s"] - row["waited_s"]["plan_wait_s"] for row in rows
    )
    assert "predicted too slow by {:.0f} and {:.0f} ms".format(*(1e3 * each for each in too_slow)) in text
    of_medians = rows[0]["step_s"]["plain"] / rows[0]["step_s"]["relibra"]
    assert (
        f"the ratio of the median steps is {of_medians:.3f}x, and the median of the ratios {rows[0]['gain']:.3f}x"
        in text
    )


def wall_clock_files() -> list[str]:
    return [path.stem for path in results.RESULTS.glob("wall_clock-*.json")]


def test_what_the_twin_says_of_gains_stands_on_the_pages_with_the_headlines() -> None:
    share = [row for row in results.read("twin") if row["kind"] == "share"]
    errors: list[float] = []
    for model in dict.fromkeys(row["model"] for row in share):
        gain, predicted = (
            only(share, model=model, of="UltraEP")[key] / only(share, model=model, of="Megatron-LM")[key]
            for key in ("published", "predicted")
        )
        errors.append(100 * (predicted / gain - 1))
    said = f"{-min(errors):.0f} % too low to {max(errors):.0f} % too high"
    of_llep = [100 * twin_tables.error(row) for row in results.read("twin") if row["kind"] == "layer"]
    for page in ("README.md", "docs/evaluation.md"):
        text = re.sub(r"\s+", " ", (REPOSITORY / page).read_text(encoding="utf-8"))
        assert said in text
        assert f"all too high, by {min(of_llep):.0f} to {max(of_llep):.0f} %" in text
    page = re.sub(r"\s+", " ", twin_tables.PAGE.read_text(encoding="utf-8"))
    assert (
        f"all of LLEP's {len(of_llep)} gains come out too high, by {min(of_llep):.0f} to {max(of_llep):.0f} %" in page
    )
    num_counted = sum(map(twin_tables.counts, results.read("twin")))
    assert f"On {num_counted} figures that others measured" in text
