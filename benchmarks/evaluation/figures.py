"""Draw the figures of docs/evaluation.md from the results on disk.

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


def tornado(axes: list[Axes]) -> None:
    """Draw what every coefficient does to the gain and to the share of perfect balance."""
    found = [(case, of["relibra"]) for case, of in cases("sensitivity", "coefficient", "value")]
    base = next(row for case, row in found if case["coefficient"] == "base")
    names = list(dict.fromkeys(case["coefficient"] for case, _ in found if case["coefficient"] != "base"))

    def span(name: str, what: str) -> float:
        values = [row[what] for case, row in found if case["coefficient"] == name] + [base[what]]
        return float(max(values) - min(values))

    names.sort(key=lambda name: -span(name, "over_plain"))
    for axis, what, title in (
        (axes[0], "over_plain", "throughput over plain, x"),
        (axes[1], "of_balanced", "share of perfect balance, %"),
    ):
        scale = 1 if what == "over_plain" else 100
        for name in names:
            for place, (case, row) in enumerate(one for one in found if one[0]["coefficient"] == name):
                value = scale * (row[what] - base[what])
                colour = ("#4060a0", "#2a7f62")[place]
                axis.barh(name, value, left=scale * base[what], color=colour, height=0.6, alpha=0.85)
                axis.annotate(
                    case["value"],
                    (scale * row[what], name),
                    xytext=(3 if value >= 0 else -3, 0),
                    textcoords="offset points",
                    ha="left" if value >= 0 else "right",
                    va="center",
                    fontsize=7,
                )
        axis.axvline(scale * base[what], color="black", linewidth=0.8)
        axis.margins(x=0.15)
        axis.set_xlabel(title)
        axis.grid(axis="y", visible=False)
    axes[0].invert_yaxis()


def main() -> None:
    """Write the figures as SVG."""
    write_figure("evaluation-presets", presets, num_panels=4, size=(11, 3.2), legend_columns=4)
    write_figure("evaluation-tornado", tornado, num_panels=2, size=(11, 8))


if __name__ == "__main__":
    main()
