"""How much more memory a step may take than its plan can know, learned from the steps before it.

Below level micro-batches a plan knows other micro-batches than those that will run: at level history the few of earlier
steps that ranks reported, for which its copies were chosen, too. So the most that any of these would take is too little
for many a step. What earlier steps took over such forecasts is a sample of what the next one will take: of n steps that
come in any order, the next one exceeds the k-th largest with a probability of k / (n + 1).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relibra.planning.execution import PhaseSummary
from relibra.planning.plan import Level, Prediction
from relibra.planning.step_plan import PlanId

_RISK = 0.05
"""How likely a step may take more than its forecast, where enough steps are known."""


class Margin(NamedTuple):
    """What the memory of known micro-batches is multiplied with."""

    factor: float = 1.0
    reason: str = ""
    """For people; empty without a margin."""


NO_MARGIN = Margin()


def taken_parts(prediction: Prediction, plan_id: PlanId, phases: Iterable[PhaseSummary]) -> list[float]:
    """Return the memory that phases took under a plan, as parts of what the plan forecast.

    It compares bytes, else the copies that a rank kept at once over the mean. Nothing where the micro-batches were
    known, the plan has no forecast, ranks applied another plan, or a report is missing.
    """
    expected = prediction.memory
    if prediction.level is Level.MICRO_BATCHES or expected is None:
        return []
    return [
        phase.peak_bytes / expected.after.size_bytes
        if expected.after.size_bytes and phase.peak_bytes is not None
        else phase.cum_overload / expected.after.cum_overload
        for phase in phases
        if phase.applied == plan_id and phase.cum_overload is not None
    ]


def choose_margin(parts: Sequence[float]) -> Margin:
    """Return the margin of the next step, from what earlier steps took as parts of their forecasts without a margin."""
    place = max(1, int(_RISK * (len(parts) + 1)))
    factor = max(1.0, sorted(parts, reverse=True)[place - 1]) if parts else 1.0
    if factor == 1.0:
        return NO_MARGIN
    more = f"{place - 1} of the last {len(parts)} steps took more" if place > 1 else f"the most of {len(parts)} steps"
    return Margin(factor, f"memory is forecast at {factor:.3f} times that of micro-batches seen ({more})")
