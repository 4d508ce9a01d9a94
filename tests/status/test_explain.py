"""Explanations of steps, in sentences."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.executed_plan import EXECUTION, PLAN
from harness.services import CLUSTER
from relibra.planning import Cause, Cluster, Phase, PlanId
from relibra.planning.execution import Execution
from relibra.planning.peak import Peak, StepMemory
from relibra.planning.plan import Level, Prediction
from relibra.status.explain import explain, write_size
from relibra.store import PlanRecord, StepRecord

PREDICTION = Prediction(
    imbalance_before=1.8,
    imbalance_after=1.2,
    imbalance_bound=1.0,
    num_moved_experts=3,
    num_replicas=4,
    reorder_size_bytes=5 << 30,
    replica_size_bytes=6 << 20,
)
STEP = StepRecord(step=8, num_sequences=12, policies={}, submitted_at=None, plan=None, failure=None)


def planned(**changes: Any) -> StepRecord:
    prediction = replace(PREDICTION, **changes)
    record = PlanRecord(
        id=PlanId(epoch=1, version=1),
        step=8,
        digest=b"",
        reason="because",
        prediction=prediction,
        submitted_at=None,
        published_at=0,
    )
    return replace(STEP, plan=record)


def test_a_plan_is_explained_by_its_prediction() -> None:
    told = explain(planned(), CLUSTER, [])
    assert told.headline == "because"
    assert "3 experts move to another home rank" in told.placement[1]
    assert "5 GiB including optimizer state" in told.placement[1]
    assert "4 replicas" in told.replicas[0]
    assert "6 MiB" in told.replicas[0]
    assert told.replicas[1].endswith("cost more than they save.")
    assert "make dispatch slower" in explain(planned(time_us=1e6), CLUSTER, []).replicas[1]
    assert told.execution == ["No rank has reported yet: ranks report when the step ends."]
    assert "No expert moves" in explain(planned(num_moved_experts=0), CLUSTER, []).placement[1]
    assert "There are no replicas: none would save" in explain(planned(num_replicas=0), CLUSTER, []).replicas[0]
    without_slots = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0)
    assert "no redundant slots" in explain(planned(num_replicas=0), without_slots, []).replicas[0]
    memory = StepMemory(before=Peak(size_bytes=3 << 30), after=Peak(size_bytes=2 << 30), budget_bytes=4 << 30)
    assert explain(planned(memory=memory), CLUSTER, []).placement[2:] == [
        "Activations of experts take at most 2 GiB of a rank, 3 GiB without relibra; the budget is 4 GiB."
    ]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (STEP, "12 sequences have been reported"),
        (replace(STEP, submitted_at=1.0), "waits for a solver"),
        (replace(STEP, submitted_at=1.0, is_leased=True), "is being solved"),
        (replace(STEP, num_sequences=0, submitted_at=1.0, level=Level.HISTORY), "planned from the loads of earlier"),
        (replace(STEP, num_sequences=0), "nobody scheduled the step"),
        (replace(STEP, failure="no load"), "there is no plan: no load"),
    ],
)
def test_a_step_without_a_plan_says_what_it_waits_for(step: StepRecord, words: str) -> None:
    told = explain(step, CLUSTER, [])
    assert words in told.headline
    assert told.placement == told.replicas == told.execution == []


def fallen_back(cause: Cause) -> Execution:
    return Execution(
        phase=Phase.UPDATE,
        num_expected=4,
        num_reports=4,
        num_ep_groups=1,
        missing=(),
        num_applied=0,
        fallbacks={cause: 4},
        reasons=("said",),
        imbalance=1.8,
        imbalance_plain=1.8,
        rank_tokens=(1, 1, 1, 1),
        num_token_copies=4,
        plan_wait_s=30.0,
    )


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_of_a_fallback_comes_with_advice(cause: Cause) -> None:
    told = explain(planned(), CLUSTER, [fallen_back(cause)]).execution
    assert f"(4 {cause})" in told[0]
    assert told[1].startswith(f"{cause}: ")


def test_after_a_late_plan_the_explanation_says_how_long_planning_took() -> None:
    step = planned()
    assert step.plan is not None
    late = replace(step, plan=replace(step.plan, submitted_at=100.0, published_at=142.5))
    told = explain(late, CLUSTER, [fallen_back(Cause.LATE)]).execution
    assert "The plan was ready 42.5 s after its schedule; the rank that waited longest waited 30.0 s." in told


def test_a_step_under_the_plan_of_an_earlier_one_names_it_and_has_no_fallback() -> None:
    earlier = replace(PLAN, step=5, prediction=replace(PLAN.prediction, level=Level.HISTORY))
    unscheduled = replace(STEP, num_sequences=0)
    told = explain(unscheduled, CLUSTER, [EXECUTION], earlier).execution
    assert (
        told[0]
        == f"Ranks applied plan {PLAN.id} of step 5, the newest from history, because nobody scheduled the step."
    )
    assert "All 4 ranks applied the plan in phase update." in told
    assert not any("kept the last plan" in each for each in told)
    newer = replace(unscheduled, plan=replace(PLAN, id=PlanId(epoch=1, version=2)))
    assert "came after they had begun" in explain(newer, CLUSTER, [EXECUTION], earlier).execution[0]
    assert "has expired or was replaced" in explain(newer, CLUSTER, [EXECUTION]).execution[0]


def test_a_step_before_anything_was_planned_says_so_without_advice() -> None:
    first = replace(EXECUTION, num_applied=0, intended={Cause.UNSCHEDULED: 4}, applied=None)
    told = explain(replace(STEP, num_sequences=0), CLUSTER, [first]).execution
    assert told[0].startswith("In phase update 4 of 4 ranks kept what they had, because nobody scheduled the step")
    assert told[1].startswith("Imbalance in phase update was 1.020; it would have been 1.800 without relibra")
    assert len(told) == 2


@given(st.integers(0, 1 << 60))
def test_sizes_are_short(size_bytes: int) -> None:
    assert len(write_size(size_bytes)) <= 12


def test_S9_an_unknown_size_is_named_with_what_to_register() -> None:
    explanation = explain(planned(reorder_size_bytes=0, replica_size_bytes=0), CLUSTER, [])
    for text in (*explanation.placement, *explanation.replicas):
        assert " 0 B" not in text
    assert "register expert_weight_size_bytes" in explanation.placement[1]
    assert "register expert_weight_size_bytes" in explanation.replicas[0]
