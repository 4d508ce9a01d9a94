"""How often a step took more memory than its plan had forecast, as a pure decision from typed records.

Below level micro-batches a plan does not know the micro-batches of its step, so its figures of memory are forecasts:
those of the micro-batches of earlier steps that it was made from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relibra.planning.execution import PhaseSummary
from relibra.planning.plan import Level
from relibra.store import PlanRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecasts:
    """The forecasts of the newest executed steps."""

    num_steps: int = 0
    """The steps that ran under a plan with a forecast, and that all ranks reported."""
    num_exceeded: int = 0
    """How many of these steps took more on some rank: bytes of activations, else copies kept at once over the mean."""

    @property
    def share(self) -> str | None:
        """Return how often steps exceeded their forecast, such as `2 of 4`; None without forecasts."""
        return f"{self.num_exceeded} of {self.num_steps}" if self.num_steps else None


def count_exceeded(executed: Iterable[tuple[PlanRecord | None, Sequence[PhaseSummary]]]) -> MemoryForecasts:
    """Return how often memory exceeded its forecast in some steps, each with its own plan and what ranks did."""
    is_exceeded = [
        is_over for plan, phases in executed for phase in phases if (is_over := _is_exceeded(plan, phase)) is not None
    ]
    return MemoryForecasts(num_steps=len(is_exceeded), num_exceeded=sum(is_exceeded))


def _is_exceeded(plan: PlanRecord | None, phase: PhaseSummary) -> bool | None:
    """Return whether a phase took more than its plan had forecast; None without a forecast or a complete phase."""
    if plan is None or plan.prediction.level is Level.MICRO_BATCHES or phase.applied != plan.id:
        return None
    expected = plan.prediction.memory
    if expected is None or phase.cum_overload is None:
        return None
    if expected.after.size_bytes is not None and phase.peak_bytes is not None:
        return phase.peak_bytes > expected.after.size_bytes
    return phase.cum_overload > expected.after.cum_overload
