"""A whole job of verl's `fully_async`, whose server generates without a pause, and whose trainer goes local steps.

vLLM runs on the CPU, and weights travel to it over a TCP store; `harness.whole_job.verl_weights` says why.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from harness.services import Loop, Service
from harness.trained import differing
from harness.whole_job.job import NUM_STEPS, Outcome, check_alike, check_said
from harness.whole_job.verl_fully_async import LOCAL_STEPS, FullyAsyncJob
from relibra.planning.plan import Level
from relibra.store import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # each job starts a dozen processes, on two cores

NUM_PLANNED = NUM_STEPS * (1 + LOCAL_STEPS)
"""The passes with plans: every update, and the pass over old log-probabilities of each first local step."""


@pytest.fixture(scope="module")
def fully_async(launch: Callable[..., Outcome]) -> Outcome:
    """A job of verl's `fully_async` on two machines, whose samples are kept."""
    return launch(FullyAsyncJob, "fully-async", own_machines=True)


@pytest.fixture(scope="module")
def fully_async_plain(launch: Callable[..., Outcome], fully_async: Outcome) -> Outcome:
    """verl's `fully_async` alone, on the same samples."""
    return launch(FullyAsyncJob, "fully-async-plain", replays=fully_async)


def trained(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the metrics of training, which verl adds up from one update of the server to the next.

    The first metrics cover only the first local step.
    """
    return [step for step in outcome.metrics if "actor/pg_loss" in step]


def test_the_job_ends_with_samples_of_older_weights(fully_async: Outcome) -> None:
    assert fully_async.code == 0, fully_async.log[-5000:]
    assert len(trained(fully_async)) == NUM_STEPS
    assert trained(fully_async)[-1]["fully_async/count/stale_trajectory_processed"] > 0


def test_the_engine_computes_what_the_trainer_does(fully_async: Outcome) -> None:
    """The samples of the first local step come from the weights that this step has."""
    assert trained(fully_async)[0]["training/rollout_probs_diff_max"] < 1e-5


def test_every_pass_on_present_weights_is_planned_for_its_micro_batches(
    fully_async: Outcome, shared_planner: Service, run: Loop
) -> None:
    for of_rank in fully_async.outcomes:
        assert len(of_rank) == NUM_PLANNED
        assert all(of_pass["is_applied"] for of_pass in of_rank), of_rank
        assert any(of_pass["num_moved"] for of_pass in of_rank), of_rank
    store = Store.open(shared_planner.redis_url)
    job = run(store.get_job("whole-fully-async"))
    plans = [run(store.get_step(job, step)).plan for step in range(NUM_PLANNED)]
    assert all(plan.prediction.level is Level.MICRO_BATCHES for plan in plans)
    run(store.close())


def test_S9_agent_loops_report_samples_where_they_finish_and_nothing_alarms(fully_async: Outcome) -> None:
    check_said(
        fully_async,
        "relibra balances job whole-fully-async",
        "relibra moves experts of job whole-fully-async",
        "relibra: samples of job whole-fully-async are reported to",
        "relibra plans no pass that verl's decoupled trainer runs on weights of an earlier local step",
    )


def test_S5_updates_and_weights_in_the_engine_are_those_of_verl_alone(
    fully_async: Outcome, fully_async_plain: Outcome
) -> None:
    assert fully_async_plain.code == 0, fully_async_plain.log[-5000:]
    assert not fully_async_plain.outcomes
    for planned, own in zip(trained(fully_async), trained(fully_async_plain), strict=True):
        check_alike(planned, own, ("actor/pg_loss", "actor/grad_norm", "critic/score/mean"))
    received = fully_async.received()
    assert len(received) == 1 + NUM_STEPS, "at the start, and after every second local step"
    for planned, own in zip(received, fully_async_plain.received(), strict=True):
        assert not differing(planned, own)
    assert all(differing(after, before) for before, after in pairwise(received)), "the comparison sees an update"
