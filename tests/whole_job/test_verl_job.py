"""A whole job of verl: `main_ppo`, agent loops, vLLM servers and Megatron workers under Ray.

vLLM runs on the CPU; `harness.whole_job.engine_on_cpu` says what is not its own there.
"""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest

from harness.services import Loop, Service
from harness.trained import differing
from harness.whole_job.job import NUM_STEPS, Outcome, check_alike, check_ended, check_planned, check_said
from harness.whole_job.verl_job import Job
from harness.whole_job.verl_loop import ABORTED_STEP
from relibra.planning.plan import Level
from relibra.routing.sequence_name import name_sequence
from relibra.store import Store

pytestmark = pytest.mark.timeout(1200)  # both jobs start a dozen processes, on two cores


@pytest.fixture(scope="module")
def balanced(launch: Callable[..., Outcome]) -> Outcome:
    """A job with the plug-in, whose samples are kept."""
    return launch(Job, "balanced")


@pytest.fixture(scope="module")
def plain(launch: Callable[..., Outcome], balanced: Outcome) -> Outcome:
    """verl alone, on the same samples."""
    return launch(Job, "plain", replays=balanced)


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


def test_samples_whose_requests_a_server_aborted_are_planned_once_and_whole(
    balanced: Outcome, shared_planner: Service, run: Loop
) -> None:
    samples = [json.loads(file.read_text()) for file in balanced.folder.glob("samples/*.json")]
    whole = [name_sequence(sample["prompt"] + sample["response"]) for sample in samples]
    partial = [
        name_sequence(sample["prompt"] + sample["response"][:num_tokens])
        for sample in samples
        for reason, num_tokens in sample["parts"][:1]
        if reason == "aborted" and num_tokens
    ]
    assert partial
    store = Store.open(shared_planner.redis_url)
    job = run(store.get_job("whole-balanced"))
    for step in (2 * ABORTED_STEP - 2, 2 * ABORTED_STEP - 1):
        scheduled, _, _ = run(store.get_schedule(job, step))
        assert sorted(scheduled) == sorted(whole)
        assert run(store.reported_sequences(job, step)) == set(whole)
    never = 2 * NUM_STEPS + 1
    assert run(store.claim(job, never, partial)) == partial, "the planner has never heard of them"
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
