"""What a simulated ratio may be, given what is known of the constants.

A ratio of two simulated times depends on every constant in one direction or the other, and the direction may differ
from case to case: a slower network makes plain expert parallelism worse under an all-to-all, and hides imbalance under
DeepEP. So each constant moves alone first, to find the end of its range that lowers the ratio and the one that raises
it. Then all constants move to these ends at once. The ends hold every choice of constants as long as no two of them
turn each other's direction; they are further apart than what any real machine spans, because no machine has all the
worst ends. Hosts do turn: a slow one costs something only where its device is fast. So the speed of hosts is chosen
last, with all other constants at their ends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from relibra.planning.machines.constants import HOST_SPEEDS, Constants
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
    low, high = corners(ratio, middle, ranges)
    return Estimate(ratio(middle), ratio(low), ratio(high))


def corners(
    ratio: Callable[[Constants], float], middle: Constants, ranges: Mapping[str, Range]
) -> tuple[Constants, Constants]:
    """Return the constants that make a ratio lowest, and those that make it highest."""

    def of_values(start: Constants, name: str) -> dict[float, float]:
        values = {getattr(start, name), ranges[name].low, ranges[name].high}
        return {value: ratio(replace(start, **{name: value})) for value in sorted(values)}

    worst, best = dict[str, float](), dict[str, float]()
    for name in ranges.keys() - HOST_SPEEDS:
        of_value = of_values(middle, name)
        worst[name], best[name] = min(of_value, key=of_value.__getitem__), max(of_value, key=of_value.__getitem__)
    low, high = replace(middle, **worst), replace(middle, **best)
    for name in [name for name in HOST_SPEEDS if name in ranges]:
        of_low, of_high = of_values(low, name), of_values(high, name)
        low = replace(low, **{name: min(of_low, key=of_low.__getitem__)})
        high = replace(high, **{name: max(of_high, key=of_high.__getitem__)})
    return low, high
