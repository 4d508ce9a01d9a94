"""A value that public measurements bound and none gives exactly."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The ends of a value, what the simulation takes by default, and who measured it."""

    low: float
    mid: float
    high: float
    source: str
    is_guess: bool = False
    """Whether nobody has published a measurement of the middle, or only one of another generation of machines."""

    def times(self, factor: float) -> "Range":
        """Return the range of this value times a factor: a share of a peak becomes a rate."""
        return replace(self, low=self.low * factor, mid=self.mid * factor, high=self.high * factor)

    def at_most(self, limit: "Range") -> "Range":
        """Return the range with no end above that of `limit`."""
        return replace(
            self, low=min(self.low, limit.low), mid=min(self.mid, limit.mid), high=min(self.high, limit.high)
        )
