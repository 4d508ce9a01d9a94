"""How balanced a step was, against what it would have been and what its plan expected."""

from dataclasses import replace

import numpy as np
import pytest

from harness.engine_payloads import count, routes
from harness.executed_plan import EXECUTION, PLAN
from relibra.planning import Cause, Cluster, Model, Phase, PlanId, PlanParams, Schedule, StepLoad, imbalance
from relibra.planning.expected.realised import realised_loads
from relibra.planning.peak import Peak, StepMemory
from relibra.planning.plan import Level
from relibra.planning.solve import solve
from relibra.routing import ModelLayers
from relibra.status.realised import (
    describe_balance,
    describe_excess,
    describe_expectation,
    describe_intended,
    describe_memory,
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


def test_the_memory_of_the_hottest_rank_stands_beside_what_its_plan_expected() -> None:
    kept = replace(EXECUTION, cum_overload=1.05)
    memory = StepMemory(before=Peak(cum_overload=1.4), after=Peak(cum_overload=1.02))
    plan = replace(PLAN, prediction=replace(PLAN.prediction, memory=memory))
    fact = "the hottest rank kept 1.05 times as many token copies at once as the mean rank"
    assert describe_memory(kept, plan) == f"{fact}; its plan expected 1.02, and 1.40 without relibra"
    assert describe_memory(kept, PLAN) == describe_memory(kept, None) == fact
    assert describe_memory(EXECUTION, plan) is None


def test_a_plan_for_known_micro_batches_is_exceeded_only_by_much() -> None:
    plan = plan_of(Level.MICRO_BATCHES)
    slightly = replace(EXECUTION, imbalance=1.2)
    assert describe_excess(slightly, plan) is None
    assert describe_expectation(slightly, plan) == "the plan expected 1.020, for the micro-batches of the step"
    told = describe_excess(replace(EXECUTION, imbalance=1.3), plan)
    assert told == "imbalance was 1.300 in phase update, but 1.020 was planned"


@pytest.mark.parametrize("num_tokens", [32, 8])
def test_tokens_whose_experts_the_router_decides_are_no_excess_and_other_routing_is(num_tokens: int) -> None:
    """No sequence has a route for its last token, which is 3 % of 32: every cell has tokens that no plan knew."""
    model = Model(num_layers=2, num_experts=16, top_k=4)
    cluster = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1)
    layers = ModelLayers.uniform(num_layers=2, num_experts=16, top_k=4)
    schedule = Schedule.round_robin(64, 8, cluster)
    trained_STLK = [routes(seed, num_tokens, layers) for seed in range(64)]
    reported_SLE = np.stack([count(each[:-1], layers) for each in trained_STLK])
    trained_SLE = np.stack([count(each, layers) for each in trained_STLK])
    plan = solve(StepLoad.of(reported_SLE, schedule, cluster), schedule, model, cluster, PlanParams(homes_stay=True))
    record = replace(PLAN, prediction=plan.prediction)

    def excess(counts_SLE: np.ndarray) -> str | None:
        load = StepLoad.of(counts_SLE, schedule, cluster)
        return describe_excess(replace(EXECUTION, imbalance=imbalance(realised_loads(plan, load))), record)

    assert plan.prediction.level is Level.MICRO_BATCHES
    assert plan.prediction.imbalance_before > 1.5
    assert excess(trained_SLE) is None
    assert excess(np.roll(trained_SLE, 8, axis=-1)) is not None


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
