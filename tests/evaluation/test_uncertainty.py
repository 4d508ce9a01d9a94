from dataclasses import replace

import pytest

from harness.small_training import CONSTANTS
from relibra.evaluation.range import Range
from relibra.evaluation.uncertainty import interval_of

_HIDING = Range(low=0.5, mid=1.0, high=2.0, source="a test")
_HOST = Range(low=100.0, mid=200.0, high=400.0, source="a test")


def test_the_ends_take_every_constant_to_its_worse_and_to_its_better_end():
    interval = interval_of(
        lambda constants: constants.hiding_share / constants.host_us,
        CONSTANTS,
        {"hiding_share": _HIDING, "host_us": _HOST},
    )
    assert interval.low == pytest.approx(0.5 / 400)
    assert interval.high == pytest.approx(2.0 / 100)


def test_a_middle_that_is_better_than_both_ends_is_the_high_end():
    interval = interval_of(lambda constants: -abs(constants.hiding_share - 1), CONSTANTS, {"hiding_share": _HIDING})
    assert (interval.low, interval.high) == (-1, 0)


def test_constants_without_a_range_give_no_interval():
    interval = interval_of(lambda constants: constants.host_us, replace(CONSTANTS, host_us=7.0), {})
    assert (interval.low, interval.high) == (7.0, 7.0)
