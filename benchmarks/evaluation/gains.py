"""The tables of docs/evaluation.md that compare relibra with balance, plain training and published ways."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from benchmarks.evaluation.page import Row, cases, markdown
from relibra.evaluation.policies import PUBLISHED


def over(one: Row, other: Row) -> float:
    """Return the throughput of one policy relative to that of another."""
    return float(one["of_balanced"] / other["of_balanced"])


def balance(row: Row) -> str:
    """Return a row's share of perfect balance with its range."""
    low, high = row["of_balanced_range"]
    return f"{row['of_balanced']:.1%} ({low:.1%} to {high:.1%})"


def gain(row: Row) -> str:
    """Return a row's gain over plain expert parallelism with its range."""
    low, high = row["over_plain_range"]
    return f"{row['over_plain']:.2f}x ({low:.2f} to {high:.2f})"


def over_published(row: Row, other: Row) -> str:
    """Return a row's throughput over that of a published way, with its range and the name of that way."""
    low, high = row["over_published_range"][other["policy"]]
    return f"{over(row, other):.3f}x ({low:.3f} to {high:.3f}, {other['policy']})"


def headline() -> str:
    """Return the span of the main figures over all models at EP 16 and 32, for each dispatcher."""
    lines = []
    by_dispatcher = defaultdict[str, list[dict[str, Row]]](list)
    for case, of in cases("presets", "dispatcher", "model", "ep"):
        by_dispatcher[case["dispatcher"]].append(of)
    for dispatcher, found in by_dispatcher.items():
        ours = [of["relibra"] for of in found]
        lines.append(
            (
                dispatcher,
                _span((row["of_balanced"] for row in ours), ".1%"),
                f"{min(row['of_balanced_range'][0] for row in ours):.1%}",
                _span((row["over_plain"] for row in ours), ".2f"),
                f"{min(row['over_plain_range'][0] for row in ours):.2f}",
                _span((over(of["relibra"], _best_other(of)) for of in found), ".2f"),
                _lowest_over_published(found),
            )
        )
    headings = ("dispatcher", "of balance", "lowest end", "over plain", "lowest end", "over the best published way")
    return markdown((*headings, "lowest end"), lines)


def _best_other(of: dict[str, Row]) -> Row:
    return max((of[other] for other in PUBLISHED), key=lambda row: float(row["of_balanced"]))


def _lowest_over_published(found: Sequence[dict[str, Row]]) -> str:
    lows = (of["relibra"]["over_published_range"][_best_other(of)["policy"]][0] for of in found)
    return f"{min(lows):.2f}"


def _span(values: Iterable[float], text: str) -> str:
    low, *_, high = sorted(values)
    return f"{low:{text}} to {high:{text}}"


def questions() -> str:
    """Return the figures of ReLibra beside ours under DeepEP, over all models at EP 16 and 32."""
    middle = [of for case, of in cases("presets", "dispatcher", "model", "ep") if case["dispatcher"] == "deepep"]
    of_235b = next(
        of
        for case, of in cases("ablation", "dispatcher", "model")
        if (case["dispatcher"], case["model"]) == ("deepep", "qwen3-235b-a22b")
    )
    parts = (of_235b[part]["over_plain"] for part in ("reorder-only", "replicate-only", "relibra", "relibra-packed"))
    ours = [of["relibra"] for of in middle]
    lines = (
        (
            "gain over plain expert parallelism; lowest low end",
            "1.21 to 1.58",
            f"{_span((row['over_plain'] for row in ours), '.2f')}; "
            f"{min(row['over_plain_range'][0] for row in ours):.2f}",
        ),
        (
            "gain over EPLB with oracle loads, both with 2 slots; lowest low end",
            "1.06 to 1.21",
            f"{_span((over(of['relibra'], of['eplb-oracle']) for of in middle), '.2f')}; "
            f"{min(row['over_published_range']['eplb-oracle'][0] for row in ours):.2f}",
        ),
        (
            "share of perfect balance; lowest low end",
            "90 % to 94 %",
            f"{_span((row['of_balanced'] for row in ours), '.1%')}; "
            f"{min(row['of_balanced_range'][0] for row in ours):.1%}",
        ),
        (
            "235B: reorder, replicate, both, with packing",
            "1.15, -, 1.39, -",
            ", ".join(f"{part:.2f}" for part in parts),
        ),
        (
            "imbalance",
            "1.00 to 1.08, over 2 without",
            f"{_span((row['imbalance'] for row in ours), '.2f')}, "
            f"{_span((of['plain']['imbalance'] for of in middle), '.1f')} without",
        ),
        ("moving experts, share of a step", "1.4 % to 2.1 %", _span((moving(row) for row in ours), ".1%")),
    )
    return markdown(("question", "ReLibra, measured", "here, simulated"), lines)


def moving(row: Row) -> float:
    """Return the share of a step in which experts move, with its share of the first placement."""
    return float(row["reorder_share"] + row["first_placement_share"])


def presets() -> str:
    """Return the gains of all models, EP sizes and dispatchers."""
    keys = ("model", "ep", "dispatcher")
    found = sorted(cases("presets", *keys), key=lambda case: tuple(case[0][key] for key in keys))
    return _gains(found, ("model", "EP", "dispatcher"), keys)


def hardware() -> str:
    """Return the gains of one model on other machines."""
    keys = ("hardware", "ep", "dispatcher")
    return _gains(cases("hardware", *keys), ("hardware", "EP", "dispatcher"), keys)


def domains() -> str:
    """Return the gains on steps of one domain and of several."""
    return _gains(cases("domains", "model", "domain"), ("model", "sequences"), ("model", "domain"))


def counts() -> str:
    """Return the gains of DeepSeek-V3 on its own counts."""
    keys = ("model", "ep", "dispatcher")
    found = sorted(cases("counts", *keys), key=lambda case: (case[0]["ep"], case[0]["dispatcher"]))
    return _gains(found, ("model", "EP", "dispatcher"), keys)


def _gains(found: Sequence[tuple[Row, dict[str, Row]]], headings: tuple[str, ...], keys: tuple[str, ...]) -> str:
    lines = []
    for case, of in found:
        ours, best = of["relibra"], _best_other(of)
        lines.append(
            (
                *(case[key] for key in keys),
                f"{of['plain']['imbalance']:.2f}",
                f"{ours['imbalance']:.3f}",
                gain(ours),
                over_published(ours, best),
                balance(ours),
                balance(of["reorder-only"]),
                f"{ours['transfer_share'] + ours['decision_share']:.1%}",
            )
        )
    columns = ("plain", "planned", "over plain", "over the best published way", "of balance")
    return markdown((*headings, *columns, "without slots", "replicas cost"), lines)
