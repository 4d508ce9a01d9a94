"""Draw the figure of docs/evaluation.md from the results on disk.

python -m benchmarks.evaluation.figures
"""

from matplotlib.axes import Axes

from benchmarks.drawing import write_figure
from benchmarks.evaluation.page import cases

_POLICIES = {
    "plain": ("plain expert parallelism", "#b0b0b0", "o"),
    "eplb-oracle": ("EPLB, oracle loads", "#e0a030", "s"),
    "ultraep": ("UltraEP, reactive", "#4060a0", "^"),
    "relibra": ("relibra", "#2a7f62", "D"),
}


def presets(axes: list[Axes]) -> None:
    """Draw throughput as a share of that of perfect balance, by model, EP size and dispatcher, with relibra's range."""
    found = cases("presets", "dispatcher", "ep", "model")
    panels = list(dict.fromkeys((case["dispatcher"], case["ep"]) for case, _ in found))
    for axis, (dispatcher, ep) in zip(axes, sorted(panels), strict=True):
        chosen = [(case["model"], of) for case, of in found if (case["dispatcher"], case["ep"]) == (dispatcher, ep)]
        of_size = sorted(chosen, key=lambda each: each[0])
        models = [model for model, _ in of_size]
        lows, highs = zip(*(of["relibra"]["of_balanced_range"] for _, of in of_size), strict=True)
        axis.hlines(models, [100 * low for low in lows], [100 * high for high in highs], color="#2a7f6280", linewidth=3)
        for name, (label, colour, marker) in _POLICIES.items():
            values = [100 * of[name]["of_balanced"] for _, of in of_size]
            axis.plot(values, models, marker, color=colour, label=label, markersize=5)
        axis.axvline(96, color="#808080", linestyle=":", linewidth=1)
        axis.set_title(f"{dispatcher}, EP {ep}")
        axis.set_xlabel("% of perfect balance")
    axes[0].invert_yaxis()


if __name__ == "__main__":
    write_figure("evaluation-presets", presets, num_panels=6, size=(15, 3.2), legend_columns=4)
