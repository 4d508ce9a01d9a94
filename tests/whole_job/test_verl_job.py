"""A whole job of verl: `main_ppo`, agent loops, vLLM servers and Megatron workers under Ray.

vLLM runs on the CPU; `harness.whole_job.engine_on_cpu` says what is not its own there.
"""

from itertools import pairwise

import pytest

from harness.services import Loop, Service
from harness.trained import differing
from harness.whole_job.job import NUM_STEPS, Outcome, check_alike, check_ended, check_planned, check_said
from relibra.planning.plan import Level
from relibra.store import Store

pytestmark = pytest.mark.timeout(1200)  # both jobs start a dozen processes, on two cores


def test_the_job_ends_after_all_its_steps(balanced: Outcome) -> None:
    check_ended(balanced)


def test_the_engine_computes_what_the_trainer_does_after_every_update(balanced: Outcome) -> None:
    """With routing replay, the probabilities of sampled tokens are those of the trainer, whose experts moved."""
    for step in balanced.metrics:
        assert step["training/rollout_probs_diff_valid"] == 1
        assert step["training/rollout_probs_diff_max"] < 1e-5


def test_every_pass_is_planned(balanced: Outcome) -> None:
    check_planned(balanced)


def test_plans_know_the_micro_batches_and_balance_them(balanced: Outcome, shared_planner: Service, run: Loop) -> None:
    store = Store.open(shared_planner.redis_url)
    job = run(store.get_job("whole-balanced"))
    for step in range(2 * NUM_STEPS):
        assert run(store.get_step(job, step)).plan.prediction.level is Level.MICRO_BATCHES
        ((phase,),) = run(store.get_executions(job, [step]))
        assert phase.imbalance < phase.imbalance_plain
    run(store.close())


def test_S9_agent_loops_report_samples_where_they_finish_and_nothing_alarms(balanced: Outcome) -> None:
    check_said(
        balanced,
        "relibra balances job whole-balanced",
        "relibra leaves every expert of job whole-balanced at its place",
        "relibra: samples of job whole-balanced are reported to",
    )


def test_S5_updates_and_weights_in_the_engine_are_those_of_verl_alone(balanced: Outcome, plain: Outcome) -> None:
    assert plain.code == 0, plain.log[-5000:]
    assert not plain.outcomes
    for planned, own in zip(balanced.metrics, plain.metrics, strict=True):
        names = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean")
        check_alike(planned, own, names)
    received = balanced.received()
    assert len(received) == 1 + NUM_STEPS, "at the start, and after every update"
    for planned, own in zip(received, plain.received(), strict=True):
        assert not differing(planned, own)
    assert all(differing(after, before) for before, after in pairwise(received)), "the comparison sees an update"
