"""Write the tables of docs/evaluation.md from the results on disk.

python -m benchmarks.evaluation.tables
"""

from pathlib import Path

from benchmarks.evaluation.gains import (
    balance,
    counts,
    domains,
    gain,
    hardware,
    headline,
    moving,
    over,
    presets,
    questions,
)
from benchmarks.evaluation.page import cases, markdown, write_table
from relibra.evaluation.constants import ranges_of
from relibra.evaluation.dispatcher import Dispatcher
from relibra.evaluation.hardware import HARDWARE

_PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def baselines() -> str:
    """Return all policies on one model: share of perfect balance, and imbalance."""
    found = cases("baselines", "ep", "dispatcher")
    names = list(found[0][1])
    lines = []
    for name in names:
        shown: list[str] = [name]
        for _, of in found:
            shown += [balance(of[name]), f"{of[name]['imbalance']:.3f}"] if name in of else ["", ""]
        lines.append(shown)
    headings = [part for case, _ in found for part in (f"EP {case['ep']}, {case['dispatcher']}", "imbalance")]
    return markdown(("policy", *headings), lines)


def ablation() -> str:
    """Return the gains of relibra's parts, alone and together, over plain expert parallelism."""
    found = cases("ablation", "model", "dispatcher")
    names = list(found[0][1])
    lines = [(name, *(gain(of[name]) for _, of in found)) for name in names]
    return markdown(("", *(f"{case['model']}, EP 32, {case['dispatcher']}" for case, _ in found)), lines)


def slots() -> str:
    """Return the share of perfect balance by number of slots."""
    found = cases("slots", "model", "ep", "slots")
    numbers = sorted({case["slots"] for case, _ in found})
    lines = []
    for model, ep in dict.fromkeys((case["model"], case["ep"]) for case, _ in found):
        for policy in ("eplb-oracle", "ultraep", "relibra"):
            of = {case["slots"]: by[policy] for case, by in found if (case["model"], case["ep"]) == (model, ep)}
            lines.append((f"{model}, EP {ep}", policy, *(balance(of[number]) for number in numbers)))
    return markdown(("", "policy", *(f"{number} slots" for number in numbers)), lines)


def costs() -> str:
    """Return the seconds that planning a step takes on one core, and the share of a step that moving experts takes."""
    keys = ("model", "ep", "dispatcher")
    found = sorted(cases("presets", *keys), key=lambda case: tuple(case[0][key] for key in keys))
    lines = [
        (
            case["model"],
            case["ep"],
            f"{of['relibra']['step_s']:.0f} s",
            f"{of['relibra']['decide_time_s']:.1f} s",
            of["relibra"]["num_moved_experts"],
            f"{of['relibra']['reorder_share']:.2%}",
            f"{of['relibra']['first_placement_share']:.2%}",
            f"{moving(of['eplb-oracle']):.2%}",
        )
        for case, of in found
        if case["dispatcher"] == "alltoall"
    ]
    headings = ("model", "EP", "step", "planning", "experts moved", "moving", "first placement", "both, eplb-oracle")
    return markdown(headings, lines)


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
                f"{over(ours, of['eplb-oracle']):.3f}x",
                f"{over(ours, of['ultraep']):.3f}x",
                f"{free / ours['step_s']:.3f}x",
            )
        )
    headings = ("coefficient", "value", "plain", "over plain", "of balance", "over eplb-oracle", "over ultraep")
    return markdown((*headings, "over ultraep with instant decisions"), lines)


def constants() -> str:
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


TABLES = (
    headline,
    questions,
    presets,
    hardware,
    baselines,
    ablation,
    slots,
    domains,
    counts,
    costs,
    sensitivity,
    constants,
)


def main() -> None:
    """Rewrite all tables of the page."""
    for table in TABLES:
        write_table(_PAGE, table)
        print(table.__name__)


if __name__ == "__main__":
    main()
