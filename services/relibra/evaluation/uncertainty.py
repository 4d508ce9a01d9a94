"""What a simulated ratio may be, given what is known of the constants.

A ratio of two simulated times depends on every constant in one direction or the other, and the direction may differ
from case to case: a slower network makes plain expert parallelism worse under an all-to-all, and hides imbalance under
DeepEP. So each constant moves alone first, to find the end of its range that lowers the ratio and the one that raises
it. Then all constants move to these ends at once. The interval holds every choice of constants as long as no two of
them turn each other's direction; it is wider than what any real machine spans, because no machine has all the worst
ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from relibra.evaluation.constants import Constants
from relibra.evaluation.range import Range


@dataclass(frozen=True, slots=True)
class Interval:
    """The ends of a ratio."""

    low: float
    high: float


def interval_of(ratio: Callable[[Constants], float], middle: Constants, ranges: Mapping[str, Range]) -> Interval:
    """Return the ratio at its worst and at its best corner of the ranges."""
    of_middle = ratio(middle)
    worst, best = dict[str, float](), dict[str, float]()
    for name, each in ranges.items():
        of_value = {getattr(middle, name): of_middle}
        for value in (each.low, each.high):
            of_value.setdefault(value, ratio(replace(middle, **{name: value})))
        worst[name] = min(of_value, key=of_value.__getitem__)
        best[name] = max(of_value, key=of_value.__getitem__)
    return Interval(ratio(replace(middle, **worst)), ratio(replace(middle, **best)))
