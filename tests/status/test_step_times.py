"""The times of plain and of planned steps, as arithmetic."""

from dataclasses import replace

import pytest

from relibra.planning import Cause, Phase
from relibra.planning.execution import PhaseSummary
from relibra.status.step_times import compare_step_times
from relibra.store import StepSummary

PLANNED = PhaseSummary(
    phase=Phase.UPDATE,
    num_expected=4,
    num_reports=4,
    num_applied=4,
    fallbacks={},
    imbalance=1.0,
    imbalance_plain=1.5,
    num_token_copies=100,
    duration_s=2.0,
    replica_wait_s=0.5,  # a part of the duration
)
PLAIN = replace(PLANNED, num_applied=0, intended={Cause.MEASURING: 4}, duration_s=3.0)


def steps(*phases: PhaseSummary) -> list[StepSummary]:
    return [
        StepSummary(
            step=step, num_sequences=8, policies={}, submitted_at=None, plan=None, failure=None, phases=(phase,)
        )
        for step, phase in enumerate(phases)
    ]


def test_times_are_medians_for_equally_many_tokens() -> None:
    long = replace(PLAIN, num_token_copies=300, duration_s=9.0)
    slow = replace(PLANNED, duration_s=20.0)
    waited = replace(PLANNED, plan_wait_s=0.1, reorder_s=0.1)
    times = compare_step_times(steps(PLAIN, long, PLANNED, waited, slow))
    assert times is not None
    assert (times.num_plain, times.num_planned) == (2, 3)
    assert times.plain_s == pytest.approx(140 * 3.0 / 100)  # 140 copies in a mean step
    assert times.planned_s == pytest.approx(140 * 2.2 / 100)


@pytest.mark.parametrize(
    "other",
    [
        PLANNED,
        replace(PLAIN, intended={Cause.MEASURING: 3}),
        replace(PLAIN, intended={Cause.UNSCHEDULED: 4}),  # it has no plan, and may have the copies of an earlier one
        replace(PLAIN, num_token_copies=None),
    ],
)
def test_S9_nothing_is_said_without_a_step_that_ran_plain_on_all_ranks(other: PhaseSummary) -> None:
    assert compare_step_times(steps(PLANNED, other)) is None
