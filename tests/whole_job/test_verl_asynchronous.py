"""A whole job of verl's asynchronous trainer, some of whose samples are of older weights than those that train."""

from collections.abc import Callable

import pytest

from harness.whole_job.job import NUM_STEPS, Outcome, check_planned
from harness.whole_job.verl_job import Job

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def asynchronous(launch: Callable[..., Outcome]) -> Outcome:
    """A job of verl's asynchronous trainer, which generates the samples of later steps while it trains."""
    return launch(Job, "asynchronous", keeps=False, settings=("trainer.v1.trainer_mode=colocate_async",))


def test_some_samples_are_of_older_weights(asynchronous: Outcome) -> None:
    assert asynchronous.code == 0, asynchronous.log[-5000:]
    assert len(asynchronous.metrics) == NUM_STEPS
    assert max(step["training/off_policy/trajectory_staleness/max"] for step in asynchronous.metrics) >= 1


def test_every_pass_is_planned_from_routing_of_older_weights_too(asynchronous: Outcome) -> None:
    check_planned(asynchronous)
    assert "training ranks report a sample that the rollout did not" not in asynchronous.log
