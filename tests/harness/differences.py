"""The largest of several differences, also where a number that is none makes one of them."""

import math
from collections.abc import Iterable


def largest(differences: Iterable[float]) -> float:
    """Return the largest difference, or infinity if one is not a number, which `max` would pass over."""
    return max(math.inf if math.isnan(each) else each for each in differences)
