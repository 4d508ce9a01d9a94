"""The figures of two steps, or of two jobs over their steps, side by side. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from relibra.status.savings import Saving, TokenTime
from relibra.status.step_figures import STEP_FIGURES, Kind, StepFigure
from relibra.store import StepSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure on both sides; None where it is not known."""

    name: str
    kind: Kind
    left: float | None
    right: float | None

    @property
    def change(self) -> float | None:
        """The right side over the left one, minus 1; None if that is unknown or without end."""
        return self.right / self.left - 1 if self.left and self.right is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The steps of one side."""

    steps: Sequence[StepSummary]
    time: TokenTime | None
    """How long the job's experts take."""

    def value(self, figure: StepFigure) -> float | None:
        """Return the median of a figure over the steps in which it is known."""
        known = [value for step in self.steps if (value := figure.read(step, self.time)) is not None]
        return median(known) if known else None


def compare(left: Side, right: Side) -> list[Compared]:
    """Return the figures of both sides: those of a step, or medians over several."""
    return [
        Compared(name=figure.title, kind=figure.kind, left=left.value(figure), right=right.value(figure))
        for figure in STEP_FIGURES
    ]


def compare_savings(left: Saving, right: Saving) -> Compared:
    """Return what balancing saved in all steps of two jobs."""
    name = "GPU-hours saved in all"
    return Compared(name=name, kind="gpu_hours", left=left.saved_gpu_hours, right=right.saved_gpu_hours)
