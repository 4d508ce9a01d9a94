"""Samples that a rollout process streams to a real planner, and what a trainer rank then has left to report."""

import logging
from collections.abc import Iterator
from threading import Timer

import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Service, routed_experts
from relibra.planning.plan import Level
from relibra.plugins.rollout_job import RolloutJob
from relibra.plugins.rollout_stream import RolloutStream
from relibra.routing import ModelLayers
from relibra.routing.sequence_name import name_sequence
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials

pytestmark = pytest.mark.integration

LAYERS = ModelLayers.uniform(num_layers=MODEL.num_layers, num_experts=MODEL.num_experts, top_k=MODEL.top_k)
SAMPLES = [list(range(first, first + 9)) for first in range(6)]
AWAY = "127.0.0.1:1"


def job_at(planner: str, job: str, attempt: str) -> RolloutJob:
    return RolloutJob(planner=planner, job=job, attempt=attempt, layers=LAYERS, credentials=Credentials())


@pytest.fixture
def trainer(shared_planner: Service, job_name: str) -> Iterator[PlannerClient]:
    """A trainer that has registered the job."""
    with PlannerClient(shared_planner.address, attempt="this launch") as trainer:
        trainer.register_job(job_name, MODEL, CLUSTER, PARAMS)
        yield trainer


def report_all(stream: RolloutStream) -> None:
    for seed, tokens in enumerate(SAMPLES):
        stream.report(tokens, routed_experts(seed, len(tokens) - 1))


def test_the_next_step_is_planned_from_samples_that_were_streamed(
    shared_planner: Service, trainer: PlannerClient, job_name: str
) -> None:
    stream = RolloutStream(lambda: job_at(shared_planner.address, job_name, "this launch"))
    report_all(stream)
    assert stream.submit(lambda: SAMPLES)
    plan = trainer.fetch_plan(job_name, 0, MODEL, wait_s=60)
    assert plan is not None
    assert plan.level is Level.STEP
    assert not trainer.claim_sequences(job_name, 0, [name_sequence(np.array(tokens)) for tokens in SAMPLES])
    stream.close()


def test_a_step_whose_samples_other_processes_have_just_sent_is_planned(
    shared_planner: Service, trainer: PlannerClient, job_name: str
) -> None:
    job = job_at(shared_planner.address, job_name, "this launch")
    rollout, driver = RolloutStream(lambda: job), RolloutStream(lambda: job)

    def sampled() -> list[list[int]]:
        Timer(0.3, report_all, (rollout,)).start()
        return SAMPLES

    rollout.report(SAMPLES[0], routed_experts(0, len(SAMPLES[0]) - 1))
    rollout.flush()  # a submission that lacks the others takes it into the step, and must find it there again
    driver.submit(sampled)
    plan = trainer.fetch_plan(job_name, 0, MODEL, wait_s=60)
    assert plan is not None
    assert plan.level is Level.STEP
    for stream in (rollout, driver):
        stream.close()


def test_a_process_follows_the_launch_that_trains_now_and_says_once_that_there_is_none(
    shared_planner: Service,
    trainer: PlannerClient,
    job_name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("relibra.plugins.rollout_stream._LOOK_S", 0.0)
    known: list[RolloutJob | None] = [None]
    stream = RolloutStream(lambda: known[0])
    report_all(stream)
    assert not stream.submit(lambda: SAMPLES)
    known[0] = job_at(shared_planner.address, job_name, "this launch")
    stream.report(SAMPLES[0], routed_experts(0, 8))
    said = [record.getMessage() for record in caplog.records]
    assert sum("no training process has registered a job that is balanced" in line for line in said) == 2
    stream.flush()
    assert trainer.claim_sequences(job_name, 0, [name_sequence(SAMPLES[0]), name_sequence(SAMPLES[1])]) == [1]
    with PlannerClient(shared_planner.address, attempt="the next launch") as later:
        later.register_job(job_name, MODEL, CLUSTER, PARAMS)
        known[0] = job_at(shared_planner.address, job_name, "the next launch")
        report_all(stream)
        stream.flush()
        assert not later.claim_sequences(job_name, 0, [name_sequence(tokens) for tokens in SAMPLES])
    stream.close()


def test_L1_a_rollout_goes_on_whatever_happens_and_S9_the_log_says_it_once(
    caplog: pytest.LogCaptureFixture, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relibra.plugins.rollout_stream._TIMEOUT_S", 0.2)
    stream = RolloutStream(lambda: job_at(AWAY, job_name, "this launch"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            stream.report(SAMPLES[0], None)
            stream.report(SAMPLES[0], np.zeros((8, 1, 1), dtype=np.uint8))
        stream.report(SAMPLES[0], routed_experts(0, 8))
        stream.submit(lambda: SAMPLES)
    stream.close()
    said = [record.getMessage() for record in caplog.records]
    assert sum("training ranks report a sample that the rollout did not: routed_experts" in line for line in said) == 1
    assert (
        sum("the next step is not planned before its micro-batches are known: 1 sequences" in line for line in said)
        == 1
    )
    assert any(f"samples of job {job_name} are reported to {AWAY} where they finish" in line for line in said)
