"""Silence counts only while a live launch would have been heard."""

import pytest

from relibra.planner.serve.takeover import NEVER_S, takeover_silence_s


@pytest.mark.parametrize(
    ("answered_for_s", "silence_s"), [(0.0, NEVER_S), (14.9, NEVER_S), (15.0, 15.0), (3600.0, 15.0)]
)
def test_S4_nobody_takes_a_place_before_a_live_launch_could_be_heard_again(
    answered_for_s: float, silence_s: float
) -> None:
    assert takeover_silence_s(15.0, answered_for_s) == silence_s
