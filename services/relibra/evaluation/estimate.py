"""What a simulated ratio may be, given what is known of the constants.

A ratio of two simulated times depends on every constant in one direction or the other, and the direction may differ
from case to case: a slower network makes plain expert parallelism worse under an all-to-all, and hides imbalance under
DeepEP. So each constant moves alone first, to find the end of its range that lowers the ratio and the one that raises
it. Then all constants move to these ends at once. The ends hold every choice of constants as long as no two of them
turn each other's direction; they are further apart than what any real machine spans, because no machine has all the
worst ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from relibra.planning.machines.constants import Constants
from relibra.planning.machines.range import Range


@dataclass(frozen=True, slots=True)
class Estimate:
    """A simulated figure with the constants in the middle of their ranges, and the ends of what it may be."""

    mid: float
    low: float
    high: float

    @classmethod
    def over(cls, samples: "Sequence[Estimate]") -> "Estimate":
        """Return the mean of samples, with the ends of all of them."""
        return cls(
            mean(sample.mid for sample in samples),
            min(sample.low for sample in samples),
            max(sample.high for sample in samples),
        )

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Return the estimate of a figure that rises with this one."""
        return Estimate(function(self.mid), function(self.low), function(self.high))

    def __format__(self, spec: str) -> str:
        return f"{self.mid:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def estimate(ratio: Callable[[Constants], float], middle: Constants, ranges: Mapping[str, Range]) -> Estimate:
    """Return a ratio with its values at the worst and at the best corner of the ranges."""
    of_middle = ratio(middle)
    worst, best = dict[str, float](), dict[str, float]()
    for name, bounds in ranges.items():
        of_value = {getattr(middle, name): of_middle}
        for value in (bounds.low, bounds.high):
            of_value.setdefault(value, ratio(replace(middle, **{name: value})))
        worst[name] = min(of_value, key=of_value.__getitem__)
        best[name] = max(of_value, key=of_value.__getitem__)
    return Estimate(of_middle, ratio(replace(middle, **worst)), ratio(replace(middle, **best)))
