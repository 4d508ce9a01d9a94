from dataclasses import replace

import pytest

from harness.small_training import CONSTANTS
from relibra.evaluation.estimate import Estimate, estimate
from relibra.planning.machines.range import Range

_HIDING = Range(low=0.5, mid=1.0, high=2.0, source="a test")
_WAVE = Range(low=100.0, mid=200.0, high=400.0, source="a test")


def test_the_ends_take_every_constant_to_its_worse_and_to_its_better_end():
    found = estimate(
        lambda constants: constants.hiding_share / constants.wave_us,
        replace(CONSTANTS, wave_us=200.0),
        {"hiding_share": _HIDING, "wave_us": _WAVE},
    )
    assert found.low == pytest.approx(0.5 / 400)
    assert found.high == pytest.approx(2.0 / 100)


def test_a_middle_that_is_better_than_both_ends_is_the_high_end():
    found = estimate(lambda constants: -abs(constants.hiding_share - 1), CONSTANTS, {"hiding_share": _HIDING})
    assert (found.low, found.high) == (-1, 0)


def test_constants_without_a_range_have_their_middle_for_ends():
    found = estimate(lambda constants: constants.wave_us, replace(CONSTANTS, wave_us=7.0), {})
    assert (found.low, found.high) == (7.0, 7.0)


def test_hosts_are_slow_or_fast_as_is_worse_with_the_other_constants_at_their_ends():
    """Alone, at the middle of the others, a slow host changes nothing."""
    ranges = {"wave_us": _WAVE, "operation_us": Range(low=1.0, mid=2.0, high=300.0, source="a test")}
    found = estimate(
        lambda constants: constants.wave_us - max(0.0, constants.operation_us - constants.wave_us),
        replace(CONSTANTS, wave_us=301.0, operation_us=2.0),
        ranges,
    )
    assert found.low == 100 - 200


def test_several_samples_have_one_middle_and_the_ends_of_all():
    found = Estimate.over([Estimate(1.2, 1.1, 1.3), Estimate(1.4, 1.25, 1.5)])
    assert (found.mid, found.low, found.high) == (pytest.approx(1.3), 1.1, 1.5)
    assert f"{found.map(lambda ratio: ratio - 1):+.1%}" == "+30.0% (+10.0% to +50.0%)"
