"""The figures of two steps or jobs, as arithmetic."""

import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.executed_plan import PLAN
from relibra.planning import Phase
from relibra.planning.execution import PhaseSummary
from relibra.planning.plan import Prediction
from relibra.status.comparison import Compared, Side, compare
from relibra.store import StepSummary

PHASE = PhaseSummary(
    phase=Phase.UPDATE,
    num_expected=4,
    num_reports=4,
    num_applied=3,
    imbalance=1.25,
    imbalance_plain=2.5,
    fallbacks={},
    plan_wait_s=0.5,
    reorder_s=0.25,
    replica_wait_s=0.125,
    reorder_sent_bytes=0,
    replica_sent_bytes=0,
    num_token_copies=100,
    duration_s=8.0,
    num_processes=4,
)
PREDICTION = Prediction(
    imbalance_before=2.5,
    imbalance_after=1.0,
    imbalance_bound=1.0,
    num_moved_experts=3,
    num_replicas=5,
    reorder_size_bytes=None,
    replica_size_bytes=64,
    imbalance_floor=1.0,
)
STEP = StepSummary(
    step=1,
    num_sequences=8,
    policies={},
    submitted_at=None,
    plan=replace(PLAN, prediction=PREDICTION),
    failure=None,
    phases=(replace(PHASE, phase=Phase.RECOMPUTE, duration_s=2.0, plan_wait_s=1.0), PHASE),
)
UNPLANNED = replace(STEP, plan=None, phases=())


def side(*steps: StepSummary) -> Side:
    return Side(steps=steps, time=None)


def figures(left: Side, right: Side) -> dict[str, Compared]:
    return {each.name: each for each in compare(left, right)}


def test_figures_of_a_step_are_those_of_its_plan_and_of_the_longest_or_all_of_its_phases() -> None:
    found = {name: each.left for name, each in figures(side(STEP), side(UNPLANNED)).items()}
    assert found["Imbalance without relibra"] == found["Imbalance that the plan expects without relibra"] == 2.5
    assert found["Speed-up of expert computation, realised"] == 2.0
    assert found["Time of all phases"] == 10.0
    assert found["Longest wait of a rank for the plan"] == 1.0
    assert found["Ranks that kept the last plan"] == 1
    assert found["Size of replicas"] == 64
    assert found["Size of moved experts"] is None


def test_what_is_not_known_on_a_side_has_no_value_and_no_change() -> None:
    found = figures(side(STEP), side(UNPLANNED))
    assert {name for name, each in found.items() if each.right is not None} == {"Sequences"}
    assert {name for name, each in found.items() if each.change is not None} == {"Sequences"}


@given(st.lists(st.floats(1, 10), min_size=1, max_size=9), st.lists(st.floats(1, 10), min_size=1, max_size=9))
def test_figures_of_jobs_are_medians_over_the_steps_that_have_them(left: list[float], right: list[float]) -> None:
    def steps(values: list[float]) -> Side:
        return side(UNPLANNED, *(replace(STEP, phases=(replace(PHASE, imbalance=each),)) for each in values))

    found = figures(steps(left), steps(right))["Imbalance with relibra"]
    assert (found.left, found.right) == (statistics.median(left), statistics.median(right))
    assert found.change == pytest.approx(statistics.median(right) / statistics.median(left) - 1)
