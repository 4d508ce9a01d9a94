"""Write the tables of docs/evaluation.md from the results on disk.

    python -m benchmarks.evaluation.tables

The page marks the place of each table by `<!-- name -->` and `<!-- /name -->`.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results

_PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"
_OTHERS = ("longest-first", "eplb-history", "eplb-oracle", "ultraep")

Row = dict[str, Any]


def _read(part: str) -> list[Row]:
    return results.read(f"evaluation-{part}")


def cases(part: str, *keys: str) -> list[tuple[Row, dict[str, Row]]]:
    """Group the rows of a part by the given keys; return (the keys' values, rows by policy) for each group."""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in _read(part):
        found.setdefault(tuple(row[key] for key in keys), {})[row["policy"]] = row
    return [(dict(zip(keys, case, strict=True)), by_policy) for case, by_policy in found.items()]


def _markdown(headings: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    rule = ["---"] + ["---:"] * (len(headings) - 1)
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (headings, rule, *lines))


def _over(one: Row, other: Row) -> float:
    return float(one["of_balanced"] / other["of_balanced"])


def questions() -> str:
    """Return the figures of ReLibra beside ours, over all models."""
    found = cases("presets", "model", "ep")
    middle = [of for case, of in found if case["ep"] in (16, 32)]
    of_235b = next(of for case, of in cases("ablation", "model", "ep") if case["model"] == "qwen3-235b-a22b")

    def best_other(of: dict[str, Row]) -> Row:
        return max((of[other] for other in _OTHERS), key=lambda row: float(row["of_balanced"]))

    def span(values: Iterable[float], text: str) -> str:
        low, *_, high = sorted(values)
        return f"{low:{text}} to {high:{text}}"

    parts = (of_235b[part]["over_plain"] for part in ("reorder-only", "replicate-only", "relibra", "relibra-packed"))
    lines = (
        (
            "gain over plain expert parallelism",
            "1.21 to 1.58",
            span((of["relibra"]["over_plain"] for of in middle), ".2f"),
        ),
        (
            "gain over EPLB with oracle loads, both with 2 slots",
            "1.06 to 1.21",
            span((_over(of["relibra"], of["eplb-oracle"]) for of in middle), ".2f"),
        ),
        (
            "gain over the best of four published ways",
            "",
            span((_over(of["relibra"], best_other(of)) for of in middle), ".2f"),
        ),
        ("share of perfect balance", "90 % to 94 %", span((of["relibra"]["of_balanced"] for of in middle), ".1%")),
        (
            "235B: reorder, replicate, both, with packing",
            "1.15, -, 1.39, -",
            ", ".join(f"{part:.2f}" for part in parts),
        ),
        (
            "imbalance, EP 8 to 64",
            "1.00 to 1.08, over 2 without",
            f"{span((of['relibra']['imbalance'] for _, of in found), '.2f')}, "
            f"{span((of['plain']['imbalance'] for _, of in found), '.1f')} without",
        ),
        (
            "moving experts, share of a step",
            "1.4 % to 2.1 %",
            span((of["relibra"]["reorder_share"] for _, of in found), ".1%"),
        ),
    )
    return _markdown(("question", "ReLibra, measured", "here, simulated"), lines)


def presets() -> str:
    """Return the gains of all models and EP sizes."""
    found = sorted(cases("presets", "model", "ep"), key=lambda case: (case[0]["model"], case[0]["ep"]))
    return _gains(found, ("model", "EP"), lambda case: (case["model"], case["ep"]))


def hardware() -> str:
    """Return the gains of one model on other machines."""
    return _gains(cases("hardware", "hardware", "ep"), ("hardware", "EP"), lambda case: (case["hardware"], case["ep"]))


def domains() -> str:
    """Return the gains on steps of one domain and of several."""
    found = cases("domains", "model", "domain")
    return _gains(found, ("model", "sequences"), lambda case: (case["model"], case["domain"]))


def counts() -> str:
    """Return the gains of DeepSeek-V3 on its own counts."""
    found = sorted(cases("counts", "model", "ep"), key=lambda case: case[0]["ep"])
    return _gains(found, ("model", "EP"), lambda case: (case["model"], case["ep"]))


def _gains(
    found: Sequence[tuple[Row, dict[str, Row]]], headings: tuple[str, ...], names: Callable[[Row], tuple[object, ...]]
) -> str:
    lines = []
    for case, of in found:
        ours = of["relibra"]
        lines.append(
            (
                *names(case),
                f"{of['plain']['imbalance']:.2f}",
                f"{ours['imbalance']:.3f}",
                f"{ours['over_plain']:.2f}x",
                *(f"{_over(ours, of[other]):.3f}x" for other in _OTHERS),
                f"**{ours['of_balanced']:.1%}**",
                f"{of['reorder-only']['of_balanced']:.1%}",
                f"{ours['transfer_share']:.1%}",
            )
        )
    columns = ("plain", "planned", "over plain", *(f"over {other}" for other in _OTHERS))
    return _markdown((*headings, *columns, "of balance", "without slots", "waits for replicas"), lines)


def baselines() -> str:
    """Return all policies on one model: share of perfect balance, and imbalance."""
    found = cases("baselines", "ep")
    names = list(found[0][1])
    lines = []
    for name in names:
        shown: list[str] = [name]
        for _, of in found:
            shown += [f"{of[name]['of_balanced']:.1%}", f"{of[name]['imbalance']:.3f}"] if name in of else ["", ""]
        lines.append(shown)
    headings = [part for case, _ in found for part in (f"EP {case['ep']}", "imbalance")]
    return _markdown(("policy", *headings), lines)


def ablation() -> str:
    """Return the gains of relibra's parts, alone and together, over plain expert parallelism."""
    found = cases("ablation", "model", "ep")
    names = list(found[0][1])
    lines = [(name, *(f"{of[name]['over_plain']:.2f}x" for _, of in found)) for name in names]
    return _markdown(("", *(f"{case['model']}, EP {case['ep']}" for case, _ in found)), lines)


def slots() -> str:
    """Return the share of perfect balance by number of slots."""
    found = cases("slots", "model", "ep", "slots")
    numbers = sorted({case["slots"] for case, _ in found})
    lines = []
    for model, ep in dict.fromkeys((case["model"], case["ep"]) for case, _ in found):
        for policy in ("eplb-oracle", "ultraep", "relibra"):
            of = {case["slots"]: by[policy] for case, by in found if (case["model"], case["ep"]) == (model, ep)}
            lines.append((f"{model}, EP {ep}", policy, *(f"{of[number]['of_balanced']:.1%}" for number in numbers)))
    return _markdown(("", "policy", *(f"{number} slots" for number in numbers)), lines)


def mismatch() -> str:
    """Return the realised imbalance by the share of token copies that are routed elsewhere."""
    rows = _read("mismatch")
    shares = sorted({row["share"] for row in rows})
    lines = []
    for trace, ep, to in dict.fromkeys((row["trace"], row["ep"], row["to"]) for row in rows):
        of = {row["share"]: row for row in rows if (row["trace"], row["ep"], row["to"]) == (trace, ep, to)}
        shown = (f"{of[share]['realised']:.3f}" for share in shares)
        lost = 1 - of[0.1]["of_balanced"] / of[0.0]["of_balanced"]
        lines.append((trace.split("_")[0], ep, to, f"{of[0.0]['plain']:.2f}", *shown, f"{lost:.1%}"))
    headings = ("trace", "EP", "routed elsewhere", "plain", *(f"{share:.0%}" for share in shares), "lost at 10%")
    return _markdown(headings, lines)


def costs() -> str:
    """Return the seconds that planning a step takes on one core, and the share of a step that moving experts takes."""
    found = sorted(cases("presets", "model", "ep"), key=lambda case: (case[0]["model"], case[0]["ep"]))
    lines = [
        (
            case["model"],
            case["ep"],
            f"{of['relibra']['step_s']:.0f} s",
            f"{of['relibra']['decide_time_s']:.1f} s",
            of["relibra"]["num_moved_experts"],
            f"{of['relibra']['reorder_share']:.2%}",
            f"{of['eplb-oracle']['reorder_share']:.2%}",
        )
        for case, of in found
        if case["ep"] in (16, 64)
    ]
    return _markdown(("model", "EP", "step", "planning", "experts moved", "moving", "moving, eplb-oracle"), lines)


def sensitivity() -> str:
    """Return the effect of each coefficient."""
    found = cases("sensitivity", "coefficient", "value")
    lines = []
    for case, of in found:
        ours = of["relibra"]
        planner_s = of["ultraep"]["decision_share"] * of["ultraep"]["step_s"]
        free = of["ultraep"]["step_s"] - planner_s
        lines.append(
            (
                case["coefficient"],
                case["value"],
                f"{of['plain']['imbalance']:.2f}",
                f"{ours['over_plain']:.2f}x",
                f"{ours['of_balanced']:.1%}",
                f"{_over(ours, of['eplb-oracle']):.3f}x",
                f"{_over(ours, of['ultraep']):.3f}x",
                f"{free / ours['step_s']:.3f}x",
            )
        )
    headings = ("coefficient", "value", "plain", "over plain", "of balance", "over eplb-oracle", "over ultraep")
    return _markdown((*headings, "over ultraep with instant decisions"), lines)


TABLES = (questions, presets, hardware, baselines, ablation, slots, domains, counts, mismatch, costs, sensitivity)


def main() -> None:
    """Rewrite all tables of the page."""
    page = _PAGE.read_text(encoding="utf-8")
    for table in TABLES:
        begin, end = f"<!-- {table.__name__} -->\n", f"<!-- /{table.__name__} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n{table()}\n\n{end}{after}"
        print(table.__name__)
    _PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
