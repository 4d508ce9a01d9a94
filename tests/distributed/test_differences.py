import math

import pytest

from harness.differences import largest


@pytest.mark.parametrize("differences", [[math.nan, 0.5], [0.5, math.nan, 0.6]])
def test_S5_a_number_that_is_none_is_the_largest_difference(differences: list[float]) -> None:
    """Training whose loss is nan must not pass for training that differs by nothing."""
    assert largest(differences) == math.inf
    assert largest([0.5, 0.6]) == 0.6
