"""Write the tables of docs/evaluation.md, evaluation-parts.md and simulation.md from the results on disk.

python -m benchmarks.evaluation.tables
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.drift import drift
from benchmarks.evaluation.hosts import hosts
from benchmarks.evaluation.low_ends import low_ends_by_bound
from benchmarks.evaluation.one_node import hosts_on_one_node
from benchmarks.evaluation.page import Row, cases, markdown, write_tables
from benchmarks.evaluation.rivals import POLICIES, slot_memory
from relibra.evaluation.policies import PUBLISHED
from relibra.planning.machines.constants import ranges_of
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE

_DOCS = Path(__file__).parents[2] / "docs"

ByPolicy = dict[str, Row]
Columns = Mapping[str, Callable[[ByPolicy], object]]
Tables = Mapping[str, Callable[[], str]]


def _balance(row: Row) -> str:
    low, high = row["of_balanced_range"]
    return f"{row['of_balanced']:.1%} ({low:.1%} to {high:.1%})"


def _gain(row: Row) -> str:
    low, high = row["over_plain_range"]
    return f"{row['over_plain']:.2f}x ({low:.2f} to {high:.2f})"


def _over(of: ByPolicy, other: str) -> float:
    """Return relibra's throughput relative to that of another policy."""
    return float(of["relibra"]["of_balanced"] / of[other]["of_balanced"])


def _best_published(of: ByPolicy) -> str:
    return max(of.keys() & PUBLISHED, key=lambda name: float(of[name]["of_balanced"]))


def _over_published(of: ByPolicy) -> str:
    name = _best_published(of)
    low, high = of["relibra"]["over_published_range"][name]
    return f"{_over(of, name):.3f}x ({low:.3f} to {high:.3f}, {name})"


def _moving(row: Row) -> float:
    """Return the share of a step in which experts move, with its share of the first placement."""
    return float(row["reorder_share"] + row["first_placement_share"])


def _span(values: Iterable[float], text: str) -> str:
    low, *_, high = sorted(values)
    return f"{low:{text}} to {high:{text}}"


def _least(values: Iterable[float], text: str) -> str:
    return f"{min(values):{text}}"


_GAINS: Columns = {
    "plain": lambda of: f"{of['plain']['imbalance']:.2f}",
    "planned": lambda of: f"{of['relibra']['imbalance']:.3f}",
    "memory": lambda of: f"{of['plain']['cum_overload']:.2f} to {of['relibra']['cum_overload']:.3f}",
    "over plain": lambda of: _gain(of["relibra"]),
    "over the best published way": _over_published,
    "of balance": lambda of: _balance(of["relibra"]),
    "without slots": lambda of: _balance(of["reorder-only"]),
    "replicas cost": lambda of: f"{of['relibra']['transfer_share'] + of['relibra']['decision_share']:.1%}",
}
_COSTS: Columns = {
    "step": lambda of: f"{of['relibra']['step_s']:.0f} s",
    "planning": lambda of: f"{of['relibra']['decide_time_s']:.1f} s",
    "experts moved": lambda of: of["relibra"]["num_moved_experts"],
    "moving": lambda of: f"{of['relibra']['reorder_share']:.2%}",
    "first placement": lambda of: f"{of['relibra']['first_placement_share']:.2%}",
    "both, eplb-oracle": lambda of: f"{_moving(of['eplb-oracle']):.2%}",
}
_SENSITIVITY: Columns = {
    "plain": lambda of: f"{of['plain']['imbalance']:.2f}",
    "over plain": lambda of: f"{of['relibra']['over_plain']:.2f}x",
    "of balance": lambda of: f"{of['relibra']['of_balanced']:.1%}",
    "over eplb-oracle": lambda of: f"{_over(of, 'eplb-oracle'):.3f}x",
    "over ultraep": lambda of: f"{_over(of, 'ultraep'):.3f}x",
    "over ultraep with instant decisions": lambda of: (
        f"{of['ultraep']['step_s'] * (1 - of['ultraep']['decision_share']) / of['relibra']['step_s']:.3f}x"
    ),
}


def _lines(found: Sequence[tuple[Row, ByPolicy]], columns: Columns) -> str:
    lines = [(*case.values(), *(shown(of) for shown in columns.values())) for case, of in found]
    return markdown((*("EP" if key == "ep" else key for key in found[0][0]), *columns), lines)


def _headline() -> str:
    """Return the span of the main figures over all models, for one node and several, and each dispatcher."""
    by_machines: dict[tuple[str, str], list[ByPolicy]] = {}
    for case, of in cases("presets", "dispatcher", "model", "ep"):
        size = "8" if case["ep"] == 8 else "16, 32"
        by_machines.setdefault((size, case["dispatcher"]), []).append(of)
    lines = []
    for machines, found in sorted(by_machines.items(), key=lambda item: item[0][0] != "8"):
        ours, best = [of["relibra"] for of in found], [_best_published(of) for of in found]
        lows = (row["over_published_range"][name][0] for row, name in zip(ours, best, strict=True))
        lines.append(
            (
                *machines,
                _span((row["of_balanced"] for row in ours), ".1%"),
                _least((row["of_balanced_range"][0] for row in ours), ".1%"),
                _span((row["over_plain"] for row in ours), ".2f"),
                _least((row["over_plain_range"][0] for row in ours), ".2f"),
                _span((_over(of, name) for of, name in zip(found, best, strict=True)), ".2f"),
                _least(lows, ".2f"),
            )
        )
    headings = (
        "EP",
        "dispatcher",
        "of balance",
        "lowest end",
        "over plain",
        "lowest end",
        "over the best published way",
    )
    return markdown((*headings, "lowest end"), lines)


def _questions() -> str:
    """Return the figures of ReLibra beside ours under DeepEP, over all models at EP 16 and 32."""
    presets = cases("presets", "dispatcher", "model", "ep")
    middle = [of for case, of in presets if case["dispatcher"] == "deepep" and case["ep"] > 8]
    ours = [of["relibra"] for of in middle]
    ablated = {(case["dispatcher"], case["model"]): of for case, of in cases("ablation", "dispatcher", "model")}
    of_235b = ablated["deepep", "qwen3-235b-a22b"]
    parts = (of_235b[part]["over_plain"] for part in ("reorder-only", "replicate-only", "relibra", "relibra-packed"))
    over_plain = _span((row["over_plain"] for row in ours), ".2f")
    over_eplb = _span((_over(of, "eplb-oracle") for of in middle), ".2f")
    of_balance = _span((row["of_balanced"] for row in ours), ".1%")
    planned = _span((row["imbalance"] for row in ours), ".2f")
    plain = _span((of["plain"]["imbalance"] for of in middle), ".1f")
    lines = (
        (
            "gain over plain expert parallelism; lowest low end",
            "1.21 to 1.58",
            f"{over_plain}; {_least((row['over_plain_range'][0] for row in ours), '.2f')}",
        ),
        (
            "gain over EPLB with oracle loads, both with 2 slots; lowest low end",
            "1.06 to 1.21",
            f"{over_eplb}; {_least((row['over_published_range']['eplb-oracle'][0] for row in ours), '.2f')}",
        ),
        (
            "share of perfect balance; lowest low end",
            "90 % to 94 %",
            f"{of_balance}; {_least((row['of_balanced_range'][0] for row in ours), '.1%')}",
        ),
        (
            "235B: reorder, replicate, both, with packing",
            "1.15, -, 1.39, -",
            ", ".join(f"{part:.2f}" for part in parts),
        ),
        ("imbalance", "1.00 to 1.08, over 2 without", f"{planned}, {plain} without"),
        ("moving experts, share of a step", "1.4 % to 2.1 %", _span(map(_moving, ours), ".1%")),
    )
    return markdown(("question", "ReLibra, measured", "here, simulated"), lines)


def _sorted(part: str) -> list[tuple[Row, ByPolicy]]:
    return sorted(cases(part, "model", "ep", "dispatcher"), key=lambda case: tuple(case[0].values()))


def _costs() -> str:
    """Return the seconds that planning a step takes on one core, and the share of a step that moving experts takes."""
    alltoall = [(case, of) for case, of in _sorted("presets") if case["dispatcher"] == "alltoall"]
    return _lines([({"model": case["model"], "ep": case["ep"]}, of) for case, of in alltoall if case["ep"] > 8], _COSTS)


def _baselines() -> str:
    """Return all policies on one model: share of perfect balance, and imbalance."""
    found = cases("baselines", "ep", "dispatcher")
    lines = []
    for name in found[0][1]:
        line = [name]
        for _, of in found:
            line += [_balance(of[name]), f"{of[name]['imbalance']:.3f}"] if name in of else ["", ""]
        lines.append(line)
    headings = [part for case, _ in found for part in (f"EP {case['ep']}, {case['dispatcher']}", "imbalance")]
    return markdown(("policy", *headings), lines)


def _ablation() -> str:
    """Return the gains of relibra's parts, alone and together, over plain expert parallelism."""
    found = cases("ablation", "model", "dispatcher")
    lines = [(name, *(_gain(of[name]) for _, of in found)) for name in found[0][1]]
    return markdown(("", *(f"{case['model']}, EP 32, {case['dispatcher']}" for case, _ in found)), lines)


def _slots() -> str:
    """Return the share of perfect balance by number of slots."""
    by_policy: dict[tuple[str, str], dict[str, str]] = {}
    for case, of in cases("slots", "model", "ep", "slots"):
        for policy in ("eplb-oracle", "ultraep", "relibra"):
            shown = by_policy.setdefault((f"{case['model']}, EP {case['ep']}", policy), {})
            shown[f"{case['slots']} slots"] = _balance(of[policy])
    return markdown(("", "policy", *shown), [(*where, *line.values()) for where, line in by_policy.items()])


def _rivals() -> str:
    """Return the share of perfect balance of all ways, and how relibra compares with the best published one."""
    lines = []
    for case, of in cases("rivals", "model", "ep", "hardware", "dispatcher", "num_micro_batches"):
        lines.append((*case.values(), *(f"{of[name]['of_balanced']:.1%}" for name in POLICIES), _over_published(of)))
    headings = ("model", "EP", "hardware", "dispatcher", "micro-batches", *POLICIES, "relibra over the best of them")
    return markdown(headings, lines)


def _constants() -> str:
    """Return the constants of H100 nodes with their ranges and sources; those of dispatch for every dispatcher."""
    lines = []
    for dispatcher in Dispatcher:
        for name, each in ranges_of(HARDWARE["h100"], dispatcher).items():
            is_dispatch = name.startswith("dispatch")
            if is_dispatch or dispatcher is Dispatcher.ALLTOALL:
                label = f"{name}, {dispatcher.value}" if is_dispatch else name
                values = f"{each.low:.4g} to {each.high:.4g}"
                lines.append((label, f"{each.mid:.4g}", values, "guess" if each.is_guess else "", each.source))
    return markdown(("constant", "middle", "range", "", "sources"), lines)


EVALUATION: Tables = {
    "headline": _headline,
    "questions": _questions,
    "presets": lambda: _lines(_sorted("presets"), _GAINS),
    "hardware": lambda: _lines(cases("hardware", "hardware", "ep", "dispatcher"), _GAINS),
    "baselines": _baselines,
    "one_node": hosts_on_one_node,
}
PARTS: Tables = {
    "rivals": _rivals,
    "slot_memory": slot_memory,
    "ablation": _ablation,
    "slots": _slots,
    "domains": lambda: _lines(cases("domains", "model", "domain"), _GAINS),
    "counts": lambda: _lines(_sorted("counts"), _GAINS),
    "costs": _costs,
    "low_ends": low_ends_by_bound,
}
SIMULATION: Tables = {
    "drift": drift,
    "sensitivity": lambda: _lines(cases("sensitivity", "coefficient", "value"), _SENSITIVITY),
    "constants": _constants,
    "hosts": hosts,
}

TABLES = {
    _DOCS / "evaluation.md": EVALUATION,
    _DOCS / "evaluation-parts.md": PARTS,
    _DOCS / "simulation.md": SIMULATION,
}

if __name__ == "__main__":
    for page, tables in TABLES.items():
        write_tables(page, tables)
