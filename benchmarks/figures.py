"""Draw the figures of docs/benchmarks.md from the results on disk.

python -m benchmarks.figures
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from benchmarks import results
from benchmarks.drawing import write_figure

_POLICIES = {
    "plain": ("plain expert parallelism", "#b0b0b0"),
    "eplb_oracle": ("EPLB, oracle loads", "#e0a030"),
    "replay": ("relibra, with replay", "#2a7f62"),
}


def growth(axes: list[Axes]) -> None:
    """Draw plan time against each size of a step; the other sizes are those of the target step."""
    rows = results.read("scale")
    target = rows[0]
    panels: tuple[tuple[str, str, Callable[[dict[str, Any]], int]], ...] = (
        ("layers", "layers L", lambda row: row["num_layers"]),
        ("experts", "experts E", lambda row: row["num_experts"]),
        ("nodes", "ranks R", lambda row: row["num_nodes"] * row["gpus_per_node"]),
        ("micro-batches", "micro-batches M", lambda row: row["num_micro_batches"]),
    )
    for axis, (case, label, size_of) in zip(axes, panels, strict=True):
        chosen = sorted((row for row in rows if row["case"] in (case, "target")), key=size_of)
        sizes = [size_of(row) for row in chosen]
        axis.loglog(sizes, [row["plan_time_s"] for row in chosen], "o-", color="#2a7f62", label="whole plan")
        replicate_s = [row["replicate_us_per_cell"] * row["num_cells"] / 1e6 for row in chosen]
        axis.loglog(sizes, replicate_s, "s-", color="#4060a0", label="replication alone")
        linear_s = [target["plan_time_s"] * size / size_of(target) for size in sizes]
        axis.loglog(sizes, linear_s, ":", color="#808080", label="linear growth")
        axis.set_xlabel(label)
        axis.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes[0].set_ylabel("seconds, one core")


def imbalance(axes: list[Axes]) -> None:
    """Draw the imbalance above 1 that every policy leaves on real routing, by topology."""
    rows = [row for row in results.read("imbalance") if (row["steps"], row["num_micro_batches"]) == ("whole", 16)]
    for axis, trace in zip(axes, dict.fromkeys(row["trace"] for row in rows), strict=True):
        for place, (policy, (label, colour)) in enumerate(_POLICIES.items()):
            above = [row[policy] - 1 for row in rows if row["trace"] == trace]
            bars = axis.bar(np.arange(3) + 0.27 * (place - 1), above, 0.25, color=colour, label=label)
            axis.bar_label(bars, labels=[f"{value + 1:.4f}" for value in above], fontsize=7, padding=2)
        axis.set_yscale("log")
        axis.set_ylim(3e-5, 6)
        axis.set_xticks(range(3), ["1 x 8 GPUs", "2 x 8", "4 x 8"])
        axis.grid(axis="x", visible=False)
        axis.set_title(str(trace).split("_")[0])
    axes[0].set_ylabel("imbalance above 1 (log)")


def main() -> None:
    """Write the figures as SVG."""
    write_figure("growth", growth, num_panels=4, size=(11, 3.0))
    write_figure("imbalance", imbalance, num_panels=2, size=(9, 3.6))


if __name__ == "__main__":
    main()
