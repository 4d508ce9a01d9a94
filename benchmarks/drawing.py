"""One look for all figures of the documentation, and the folder where they are kept."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

IMAGES = Path(__file__).parents[1] / "docs" / "images"
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "font.size": 9,
    "svg.hashsalt": "relibra",
    "svg.fonttype": "none",
}


def write_figure(
    name: str,
    draw: Callable[[list[Axes]], None],
    num_panels: int,
    size: tuple[float, float],
    legend_columns: int = 3,
    shares_y: bool = True,
) -> None:
    """Draw panels side by side, with one legend above them, and write `docs/images/<name>.svg`.

    Args:
        name: the name of the file.
        draw: the function that draws into the panels; the labels of the first panel make the legend.
        num_panels: the number of panels.
        size: width and height in inches.
        legend_columns: the number of columns of the legend.
        shares_y: whether panels share their y axis.
    """
    mpl.use("svg")
    IMAGES.mkdir(exist_ok=True)
    with plt.rc_context(STYLE):  # type: ignore[arg-type]
        figure, axes = plt.subplots(1, num_panels, figsize=size, sharey=shares_y, layout="constrained")
        draw(list(axes))
        handles, labels = axes[0].get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside upper center", ncols=legend_columns, frameon=False)
        path = IMAGES / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        print(path)
