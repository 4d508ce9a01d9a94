"""How often a step took more memory than its plan had forecast, as a pure decision from typed records.

Below level micro-batches a plan does not know the micro-batches of its step, so its figures of memory are forecasts:
those of the micro-batches of earlier steps that it was made from, with a margin (`planning.forecasts`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relibra.planning.execution import PhaseSummary
from relibra.planning.forecasts import taken_parts
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
    parts = [
        part for plan, phases in executed if plan is not None for part in taken_parts(plan.prediction, plan.id, phases)
    ]
    return MemoryForecasts(num_steps=len(parts), num_exceeded=sum(part > 1 for part in parts))
