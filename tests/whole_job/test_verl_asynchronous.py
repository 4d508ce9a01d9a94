"""A whole job of verl's asynchronous trainer, which aborts unfinished requests at every update and resumes them."""

import pytest

from harness.whole_job.verl_job import NUM_STEPS, Outcome

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def test_requests_are_aborted_and_resumed(interrupted: Outcome) -> None:
    assert interrupted.code == 0, interrupted.log[-5000:]
    assert len(interrupted.metrics) == NUM_STEPS
    assert max(step["training/off_policy/trajectory_spans/max"] for step in interrupted.metrics) > 1


def test_every_pass_is_planned_though_samples_have_routing_of_several_weights(interrupted: Outcome) -> None:
    assert len(interrupted.outcomes) == 2
    for outcomes in interrupted.outcomes:
        assert len(outcomes) == 2 * NUM_STEPS, "a pass over old log-probabilities and an update in every step"
        assert all(outcome["is_applied"] for outcome in outcomes), outcomes
        assert all(outcome["num_replicas"] for outcome in outcomes), outcomes
    assert "training ranks report a sample that the rollout did not" not in interrupted.log
