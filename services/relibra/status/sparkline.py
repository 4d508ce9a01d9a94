"""Sparklines: SVG line charts small enough for a table cell."""

from collections.abc import Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT, _MARGIN = 120, 28, 3


def sparkline(series: dict[str, Sequence[float]], label: str) -> Markup:
    """Return an SVG with one line for each series, on a common scale.

    Args:
        series: maps the CSS class of each line to its values, from left to right.
        label: the accessible description of the chart.
    """
    values = [value for line in series.values() for value in line]
    if len(values) < 2:
        return Markup("")
    low, high = min(values), max(values)
    lines = Markup("").join(
        Markup('<polyline class="{}" points="{}"/>').format(name, _points(line, low, high))
        for name, line in series.items()
    )
    return Markup('<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, label, lines
    )


def _points(values: Sequence[float], low: float, high: float) -> str:
    width, height = _WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN
    step = width / max(1, len(values) - 1)
    span = (high - low) or 1.0
    return " ".join(
        f"{_MARGIN + index * step:.1f},{_MARGIN + (high - value) / span * height:.1f}"
        for index, value in enumerate(values)
    )
