"""A whole job of SkyRL: `main_base`, its generator, router and vLLM server, and Megatron workers under Ray.

vLLM runs on the CPU; `harness.whole_job.engine_on_cpu` and `skyrl_engine` say what is not its own there.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest

from harness.services import Loop, Service
from harness.trained import differing
from harness.whole_job.job import NUM_STEPS, Outcome, check_alike, check_ended, check_planned
from harness.whole_job.skyrl_job import Job
from relibra.planning.plan import Level
from relibra.store import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # each job starts a dozen processes, on two cores


@pytest.fixture(scope="module")
def skyrl_balanced(launch: Callable[..., Outcome]) -> Outcome:
    """A job of SkyRL with the plug-in, whose samples are kept."""
    return launch(Job, "skyrl-balanced")


@pytest.fixture(scope="module")
def skyrl_plain(launch: Callable[..., Outcome], skyrl_balanced: Outcome) -> Outcome:
    """SkyRL alone, on the same samples."""
    return launch(Job, "skyrl-plain", replays=skyrl_balanced)


def test_the_job_ends_after_all_its_steps(skyrl_balanced: Outcome) -> None:
    check_ended(skyrl_balanced)


def test_the_engine_computes_what_the_trainer_does_after_every_update(skyrl_balanced: Outcome) -> None:
    for step in skyrl_balanced.metrics:
        assert step["policy/rollout_train_logprobs_abs_diff_max"] < 1e-5


def test_every_pass_is_planned(skyrl_balanced: Outcome) -> None:
    check_planned(skyrl_balanced)
    assert "trains without plans" not in skyrl_balanced.log


def test_plans_know_the_micro_batches_and_balance_them(
    skyrl_balanced: Outcome, shared_planner: Service, run: Loop
) -> None:
    store = Store.open(shared_planner.redis_url)
    job = run(store.get_job("whole-skyrl-balanced"))
    for step in range(2 * NUM_STEPS):
        assert run(store.get_step(job, step)).plan.prediction.level is Level.MICRO_BATCHES
        ((phase,),) = run(store.get_executions(job, [step]))
        assert phase.imbalance < phase.imbalance_plain
    run(store.close())


def test_the_generator_reports_samples_where_they_finish(skyrl_balanced: Outcome) -> None:
    assert "relibra: samples of job whole-skyrl-balanced are reported to" in skyrl_balanced.log
    assert "training ranks report a sample that the rollout did not" not in skyrl_balanced.log


def test_S5_updates_and_weights_in_the_engine_are_those_of_skyrl_alone(
    skyrl_balanced: Outcome, skyrl_plain: Outcome
) -> None:
    assert skyrl_plain.code == 0, skyrl_plain.log[-5000:]
    assert not skyrl_plain.outcomes
    for planned, own in zip(skyrl_balanced.metrics, skyrl_plain.metrics, strict=True):
        names = ("policy/policy_loss", "policy/grad_norm", "reward/avg_raw_reward")
        check_alike(planned, own, names)
    received = skyrl_balanced.received()
    assert len(received) == 1 + NUM_STEPS, "at the start, and after every update"
    for planned, own in zip(received, skyrl_plain.received(), strict=True):
        assert not differing(planned, own)
    assert all(differing(after, before) for before, after in pairwise(received)), "the comparison sees an update"
