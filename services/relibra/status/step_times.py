"""How long steps take with relibra and without it, both measured: ranks run some steps plain to compare (N1). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from relibra.planning import Cause
from relibra.planning.execution import PhaseSummary
from relibra.store import StepSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Medians over steps, with waits for plans and reorders, for equally many tokens: those of a mean step."""

    plain_s: float
    planned_s: float
    num_plain: int
    num_planned: int


def compare_step_times(steps: Sequence[StepSummary]) -> StepTimes | None:
    """Return how long plain and planned steps took; None unless there are some of both."""
    reported = [step for step in steps if step.phases and all(phase.num_token_copies for phase in step.phases)]
    plain_s = [_per_copy_s(step) for step in reported if all(map(_is_plain, step.phases))]
    planned_s = [_per_copy_s(step) for step in reported if all(map(_is_planned, step.phases))]
    if not plain_s or not planned_s:
        return None
    copies = mean(map(_num_copies, reported))
    return StepTimes(
        plain_s=copies * median(plain_s),
        planned_s=copies * median(planned_s),
        num_plain=len(plain_s),
        num_planned=len(planned_s),
    )


def _is_plain(phase: PhaseSummary) -> bool:
    return phase.intended.get(Cause.MEASURING, 0) + phase.intended.get(Cause.NOT_FASTER, 0) == phase.num_expected


def _is_planned(phase: PhaseSummary) -> bool:
    return phase.num_applied == phase.num_expected


def _num_copies(step: StepSummary) -> int:
    return sum(phase.num_token_copies or 0 for phase in step.phases)


def _per_copy_s(step: StepSummary) -> float:
    return sum(phase.duration_s + phase.plan_wait_s + phase.reorder_s for phase in step.phases) / _num_copies(step)
