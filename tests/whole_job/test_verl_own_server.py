"""Whole jobs of verl's `fully_async` and `separate_async`: a server generates without a pause, beside local steps.

vLLM runs on the CPU, and weights travel to it over a TCP store; `harness.whole_job.verl_weights` says why.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from harness.services import Loop, Service
from harness.trained import differing
from harness.whole_job.job import NUM_STEPS, Outcome, check_alike, check_said
from harness.whole_job.verl_fully_async import FullyAsyncJob
from harness.whole_job.verl_job import LOCAL_STEPS, Job
from harness.whole_job.verl_separate_async import SeparateAsyncJob
from relibra.planning.plan import Level
from relibra.store import Store

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # each job starts a dozen processes, on two cores

NUM_PLANNED = NUM_STEPS * (1 + LOCAL_STEPS)
"""The passes with plans: every update, and the pass over old log-probabilities of each first local step."""
AGES = ("fully_async/count/stale_trajectory_processed", "training/off_policy/trajectory_staleness/max")
"""The metrics that tell of samples of older weights."""


@pytest.fixture(scope="module", params=[FullyAsyncJob, SeparateAsyncJob])
def kind(request: pytest.FixtureRequest) -> type[Job]:
    """A trainer of verl."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def balanced(launch: Callable[..., Outcome], kind: type[Job]) -> Outcome:
    """A job on two machines, whose samples are kept."""
    return launch(kind, kind.__name__.lower(), own_machines=True)


@pytest.fixture(scope="module")
def plain(launch: Callable[..., Outcome], kind: type[Job], balanced: Outcome) -> Outcome:
    """verl alone, on the same samples."""
    return launch(kind, f"{balanced.folder.name}-plain", replays=balanced)


def trained(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the metrics of training from one update of the server to the next.

    With `fully_async`, the first metrics cover only the first local step.
    """
    return [step for step in outcome.metrics if "actor/pg_loss" in step]


def test_the_job_ends_with_samples_of_older_weights(balanced: Outcome) -> None:
    assert balanced.code == 0, balanced.log[-5000:]
    assert len(trained(balanced)) == NUM_STEPS
    assert any(trained(balanced)[-1].get(age, 0) > 0 for age in AGES)


def test_the_engine_computes_what_the_trainer_does(balanced: Outcome) -> None:
    """The samples of the first local step come from the weights that this step has."""
    assert trained(balanced)[0]["training/rollout_probs_diff_max"] < 1e-5


def test_every_pass_on_present_weights_is_planned_for_its_micro_batches(
    balanced: Outcome, shared_planner: Service, run: Loop
) -> None:
    for of_rank in balanced.outcomes:
        assert len(of_rank) == NUM_PLANNED
        assert all(of_pass["is_applied"] for of_pass in of_rank), of_rank
        assert any(of_pass["num_moved"] for of_pass in of_rank), of_rank
    store = Store.open(shared_planner.redis_url)
    job = run(store.get_job(f"whole-{balanced.folder.name}"))
    plans = [run(store.get_step(job, step)).plan for step in range(NUM_PLANNED)]
    assert all(plan.prediction.level is Level.MICRO_BATCHES for plan in plans)
    run(store.close())


def test_S9_agent_loops_report_samples_where_they_finish_and_nothing_alarms(balanced: Outcome) -> None:
    job = f"whole-{balanced.folder.name}"
    check_said(
        balanced,
        f"relibra balances job {job}",
        f"relibra moves experts of job {job}",
        f"relibra: samples of job {job} are reported to",
        "relibra plans no pass that verl's decoupled trainer runs on weights of an earlier local step",
    )


def test_S5_updates_and_weights_in_the_engine_are_those_of_verl_alone(balanced: Outcome, plain: Outcome) -> None:
    assert plain.code == 0, plain.log[-5000:]
    assert not plain.outcomes
    for planned, own in zip(trained(balanced), trained(plain), strict=True):
        check_alike(planned, own, ("actor/pg_loss", "actor/grad_norm", "critic/score/mean"))
    received = balanced.received()
    assert len(received) == 1 + NUM_STEPS, "at the start, and after every second local step"
    for planned, own in zip(received, plain.received(), strict=True):
        assert not differing(planned, own)
    assert all(differing(after, before) for before, after in pairwise(received)), "the comparison sees an update"
