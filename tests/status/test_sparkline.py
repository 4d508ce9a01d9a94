"""Sparklines."""

import re

from hypothesis import given
from hypothesis import strategies as st

from relibra.status.sparkline import sparkline


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_lines_stay_inside_their_picture(values: list[float]) -> None:
    drawn = sparkline({"after": values}, "values")
    points = [tuple(map(float, each.split(","))) for each in re.search('points="(.*?)"', drawn)[1].split()]
    assert len(points) == len(values)
    assert all(0 <= x <= 120 and 0 <= y <= 28 for x, y in points)
    highest = values.index(max(values))
    assert points[highest][1] == min(y for _, y in points)


def test_fewer_than_two_values_are_no_line_and_labels_are_escaped() -> None:
    assert sparkline({"after": [1.0]}, "values") == ""
    assert "&lt;b&gt;" in sparkline({"after": [1.0, 2.0]}, "<b>")
