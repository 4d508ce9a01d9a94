"""How balanced a step was, against what it would have been and what its plan expected."""

from dataclasses import replace

import pytest

from harness.executed_plan import EXECUTION, PLAN
from relibra.planning import Cause, Phase, PlanId
from relibra.planning.plan import Level
from relibra.status.realised import (
    describe_balance,
    describe_excess,
    describe_expectation,
    describe_intended,
    last_complete,
)
from relibra.store import PlanRecord


def plan_of(level: Level) -> PlanRecord:
    return replace(PLAN, prediction=replace(PLAN.prediction, level=level))


def test_the_headline_is_the_last_phase_that_all_ranks_have_reported() -> None:
    recompute = replace(EXECUTION, phase=Phase.RECOMPUTE)
    assert last_complete([recompute, EXECUTION]) is EXECUTION
    assert last_complete([recompute, replace(EXECUTION, imbalance=None)]) is recompute
    assert last_complete([]) is None


def test_both_imbalances_are_those_of_real_loads() -> None:
    assert describe_balance(EXECUTION) == (
        "imbalance in phase update was 1.020; it would have been 1.800 without relibra"
    )
    assert describe_balance(replace(EXECUTION, imbalance_plain=None)) == "imbalance in phase update was 1.020"
    assert describe_balance(replace(EXECUTION, imbalance=None)) is None


@pytest.mark.parametrize(
    ("imbalance", "words"), [(1.122, "10.0% too low"), (1.0, "2.0% too high"), (1.0201, "was right")]
)
@pytest.mark.parametrize("level", [Level.HISTORY, Level.STEP])
def test_a_forecast_has_an_accuracy_and_never_an_excess(level: Level, imbalance: float, words: str) -> None:
    execution = replace(EXECUTION, imbalance=imbalance)
    told = describe_expectation(execution, plan_of(level))
    assert told is not None
    assert "the plan expected 1.020, from the" in told
    assert told.endswith(words)
    assert describe_excess(replace(execution, imbalance=9.0), plan_of(level)) is None


def test_a_plan_for_known_micro_batches_is_exceeded_only_by_much() -> None:
    plan = plan_of(Level.MICRO_BATCHES)
    slightly = replace(EXECUTION, imbalance=1.2)
    assert describe_excess(slightly, plan) is None
    assert describe_expectation(slightly, plan) == "the plan expected 1.020, for the micro-batches of the step"
    told = describe_excess(replace(EXECUTION, imbalance=1.3), plan)
    assert told == "imbalance was 1.300 in phase update, but 1.020 was planned"


def test_ranks_are_measured_by_no_plan_but_the_one_that_they_applied() -> None:
    other = replace(PLAN, id=PlanId(epoch=1, version=9))
    for plan in (None, other):
        assert describe_excess(replace(EXECUTION, imbalance=9.0), plan) is None
        assert describe_expectation(EXECUTION, plan) is None


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (Cause.UNSCHEDULED, "nothing was planned"),
        (Cause.MEASURING, "to measure"),
        (Cause.NOT_FASTER, "not to be faster"),
    ],
)
def test_ranks_that_were_to_apply_no_plan_are_no_alarm(cause: Cause, words: str) -> None:
    assert describe_intended(EXECUTION) is None
    told = describe_intended(replace(EXECUTION, num_applied=0, intended={cause: 4}))
    assert told is not None
    assert told.startswith("in phase update 4 of 4 ranks ")
    assert words in told
