"""A whole job of verl whose server records routing, which nothing replays: each step is planned from its samples."""

from collections.abc import Callable

import pytest

from harness.services import Loop, Service
from harness.whole_job.job import NUM_STEPS, Outcome
from harness.whole_job.verl_job import WITHOUT_REPLAY, Job
from relibra.planning.plan import Level
from relibra.store import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # the job starts a dozen processes, on two cores


@pytest.fixture(scope="module")
def recorded(launch: Callable[..., Outcome]) -> Outcome:
    """A job on two machines whose server records routing, which nothing replays."""
    return launch(Job, "recorded", own_machines=True, keeps=False, settings=(WITHOUT_REPLAY,))


def test_a_pass_over_samples_is_planned_from_them_and_its_update_is_too(
    recorded: Outcome, shared_planner: Service, run: Loop
) -> None:
    assert recorded.code == 0, recorded.log[-5000:]
    store = Store.open(shared_planner.redis_url)
    job = run(store.get_job("whole-recorded"))
    plans = [run(store.get_step(job, step)).plan for step in range(0, 2 * NUM_STEPS, 2)]
    assert all(plan.prediction.level is Level.STEP for plan in plans)
    run(store.close())
    for outcomes in recorded.outcomes:
        assert len(outcomes) == 2 * NUM_STEPS, "a pass over old log-probabilities and an update in every step"
        assert all(of_pass["is_applied"] and of_pass["num_moved"] for of_pass in outcomes[0::2]), outcomes
        assert all(of_update["is_kept"] or of_update["is_applied"] for of_update in outcomes[1::2]), outcomes


def test_the_engine_computes_what_the_trainer_does_wherever_experts_are(recorded: Outcome) -> None:
    for step in recorded.metrics:
        assert step["training/rollout_probs_diff_max"] < 1e-5
