"""Draw how plan time grows, and the curves of a whole job, from the results on disk.

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


COLOURS = {"balanced": "#2a7f62", "plain": "#808080"}


def whole_job(axes: list[Axes]) -> None:
    """Draw what verl says of every step of both jobs, and the imbalance of every update."""
    rows, passes = results.read("whole_job"), results.settings("whole_job")["passes"]
    panels = (
        ("reward", "reward"),
        ("gradient_norm", "norm of gradients"),
        ("engine_against_trainer", "largest difference of\nprobabilities, engine and trainer"),
        ("host_memory_gb", "memory of training processes, GB"),
    )
    for axis, (column, label) in zip(axes, panels, strict=False):
        for name, colour in COLOURS.items():
            steps = [row for row in rows if row["job"] == name]
            axis.plot(
                [row["step"] for row in steps], [row[column] for row in steps], color=colour, label=name, linewidth=1
            )
        axis.set_ylabel(label)
    for axis in axes[1:3]:
        axis.set_yscale("log")
    axes[3].set_ylim(bottom=0)
    updates = [of_pass for of_pass in passes if of_pass["imbalance_realised"] is not None][1::2]
    for key, name in (("imbalance_plain", "plain"), ("imbalance_realised", "balanced")):
        axes[4].plot(range(1, 1 + len(updates)), [one[key] for one in updates], color=COLOURS[name], linewidth=1)
    axes[4].set_ylabel("imbalance of updates")
    for axis in axes:
        axis.set_xlabel("step")


if __name__ == "__main__":
    write_figure("growth", growth, num_panels=4, size=(11, 3.0))
    if (results.RESULTS / "whole_job.json").exists():
        write_figure("whole-job", whole_job, num_panels=5, size=(14, 2.8), shares_y=False)
    else:
        print("no curves of a whole job: python -m benchmarks.whole_job FOLDER --write makes them")
