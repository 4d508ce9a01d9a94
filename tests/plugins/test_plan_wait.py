"""Passes wait for a plan as long as it could save, by what is known of the passes before."""

from unittest import mock

import pytest

from relibra.agent import Phase, StepOutcome
from relibra.planning import PlanId
from relibra.plugins.plan_wait import PlanWait, most_wait_s

PLANNED = StepOutcome(step=0, applied=PlanId(epoch=1, version=1), reason="planned", expected_gain=0.5)
KEPT = StepOutcome(step=1, applied=None, kept=PLANNED.applied, reason="late", expected_gain=0.25)
PLAIN = StepOutcome(step=0, applied=None, reason="the planner is away")


@pytest.mark.parametrize(
    ("pass_s", "expected_gain", "wait_s"),
    [(None, 0.0, 30.0), (4.0, 0.5, 2.0), (4.0, 0.25, 1.0), (400.0, 0.5, 30.0), (40.0, 0.0, 0.4)],
)
def test_L1_a_pass_waits_no_longer_than_its_plan_could_save(
    pass_s: float | None, expected_gain: float, wait_s: float
) -> None:
    assert most_wait_s(30.0, pass_s, expected_gain) == pytest.approx(wait_s)


def test_L1_the_wait_follows_the_last_pass_of_the_same_phase_and_the_last_plan() -> None:
    wait = PlanWait(30.0, 8, mock.Mock(side_effect=[0.0, 3.0, 4.0, 10.0, 18.0]))
    wait.begin(Phase.RECOMPUTE, PLANNED)
    wait.mark()
    wait.mark()  # after its last micro-batch; what the framework does then is not its time
    assert wait.limit_s(Phase.RECOMPUTE) == 4.0 * 0.5
    wait.begin(Phase.UPDATE, KEPT)
    assert wait.limit_s(Phase.UPDATE) == 30.0, "nothing is known yet of the phase that runs"
    wait.mark()
    assert wait.limit_s(Phase.UPDATE) == 8.0 * 0.25
    assert wait.limit_s(Phase.RECOMPUTE) == 4.0 * 0.25


def test_L1_only_the_first_pass_may_wait_the_full_limit() -> None:
    """Where no plan ever comes in time, balance could save at most what the slowest of all ranks may lose."""
    wait = PlanWait(30.0, 8, mock.Mock(side_effect=[0.0, 2.0, 5.0, 11.0]))
    assert wait.limit_s(Phase.RECOMPUTE) == 30.0
    wait.begin(Phase.RECOMPUTE, PLAIN)
    wait.mark()
    assert wait.limit_s(Phase.UPDATE) == 2.0 * 7 / 8, "the other phase is an estimate"
    wait.begin(Phase.UPDATE, PLAIN)
    wait.mark()
    assert wait.limit_s(Phase.UPDATE) == 6.0 * 7 / 8
    assert wait.limit_s(Phase.RECOMPUTE) == 2.0 * 7 / 8


def test_a_plain_pass_leaves_what_the_last_plan_told() -> None:
    wait = PlanWait(30.0, 8, mock.Mock(side_effect=[0.0, 2.0, 5.0, 8.0]))
    for outcome in (PLANNED, PLAIN):
        wait.begin(Phase.UPDATE, outcome)
        wait.mark()
    assert wait.limit_s(Phase.UPDATE) == 3.0 * 0.5
