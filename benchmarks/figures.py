"""Draw how plan time grows, for docs/benchmarks.md, from the results on disk.

python -m benchmarks.figures
"""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes

from benchmarks import results
from benchmarks.drawing import write_figure


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


if __name__ == "__main__":
    write_figure("growth", growth, num_panels=4, size=(11, 3.0))
