"""A whole job of verl without replay: planned from history, experts move, the planner dies, training resumes."""

import pytest
from whole_job.conftest import PLANNED, SAVED, STEPS_OF_DRIFTER

from harness.trained import differing
from harness.whole_job.job import Outcome, check_alike

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # both jobs start a dozen processes, on two cores


def test_passes_are_planned_from_those_before_and_experts_move(drifter: Outcome) -> None:
    assert drifter.code == 0, drifter.log[-5000:]
    assert len(drifter.outcomes) == 2
    for outcomes in drifter.outcomes:
        assert len(outcomes) == 2 * STEPS_OF_DRIFTER, "a pass over old log-probabilities and an update in every step"
        planned = outcomes[2 : 2 * PLANNED]
        assert all(outcome["is_applied"] or outcome["is_kept"] for outcome in planned), outcomes
        assert any(outcome["num_moved"] for outcome in planned), outcomes


def test_L1_the_job_trains_on_when_its_planner_dies(drifter: Outcome) -> None:
    assert len(drifter.metrics) == STEPS_OF_DRIFTER
    for outcomes in drifter.outcomes:
        assert all(outcome["is_kept"] for outcome in outcomes[2 * PLANNED + 1 :]), outcomes
    assert "it keeps placement and replicas of plan" in drifter.log


def test_the_engine_computes_what_the_trainer_does_wherever_experts_are(drifter: Outcome) -> None:
    for step in drifter.metrics:
        assert step["training/rollout_probs_diff_max"] < 1e-5


def test_S5_verl_alone_resumes_from_the_checkpoint_with_the_same_results(drifter: Outcome, resumed: Outcome) -> None:
    assert resumed.code == 0, resumed.log[-5000:]
    assert len(resumed.metrics) == STEPS_OF_DRIFTER - SAVED
    names = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean")
    for planned, own in zip(drifter.metrics[SAVED:], resumed.metrics, strict=True):
        check_alike(planned, own, names)
    received = drifter.received()[SAVED:]
    assert len(received) == 1 + STEPS_OF_DRIFTER - SAVED
    for planned, own in zip(received, resumed.received(), strict=True):
        assert not differing(planned, own)
