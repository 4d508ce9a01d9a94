"""A training that goes back to an earlier step without a restart, with a real planner and a real Redis."""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, eventually, routed_experts
from relibra.agent import AgentConfig, Session
from relibra.errors import Conflict, InvalidInput, NotFound, RolledBack
from relibra.planning import ExecutionReport, Phase, Schedule, StepPlan
from relibra.rollout import RolloutReporter
from relibra.store import Store
from relibra.wire.client import PlannerClient

IDS = [f"seq-{index}" for index in range(8)]
SCHEDULE = Schedule.round_robin(len(IDS), 2, CLUSTER)


@dataclass
class Training:
    """The driver and a reporter of a training."""

    planner: Service
    job_id: str
    client: PlannerClient
    reporter: RolloutReporter

    def register(self, client: PlannerClient) -> int:
        return client.register_job(self.job_id, MODEL, CLUSTER, PARAMS)

    def roll_back(self, step: int) -> int:
        return self.client.rollback(self.job_id, step)

    def sample(self, step: int, seed: int) -> None:
        for index, sequence_id in enumerate(IDS):
            assert self.reporter.report(step, sequence_id, routed_experts(1000 * seed + index, 5 + index))

    def submit(self, step: int, schedule: Schedule = SCHEDULE) -> None:
        self.client.submit_schedule(self.job_id, step, IDS[: len(schedule.micro_batch_S)], schedule)

    def fetch(self, step: int, *, wait_s: float = 60) -> StepPlan:
        return self.client.fetch_plan(self.job_id, step, MODEL, wait_s=wait_s)

    def train(self, step: int, seed: int) -> StepPlan:
        self.sample(step, seed)
        assert self.reporter.flush(timeout_s=60) == len(IDS)
        self.submit(step)
        fetched = self.fetch(step)
        assert fetched.step == step
        return fetched

    @contextmanager
    def session(self) -> Iterator[Session]:
        address, job_id = self.planner.address, self.job_id
        session = Session(
            AgentConfig(planner_address=address, job_id=job_id, model=MODEL, cluster=CLUSTER, attempt="launch-1")
        )
        try:
            yield session
        finally:
            session.close()


@contextmanager
def training_with(planner: Service, job_id: str) -> Iterator[Training]:
    with (
        PlannerClient(planner.address, timeout_s=60, attempt="launch-1") as client,
        RolloutReporter(planner.address, job_id, num_experts=MODEL.num_experts, attempt="launch-1") as reporter,
    ):
        training = Training(planner, job_id, client, reporter)
        training.register(client)
        yield training


@pytest.fixture
def training(shared_planner: Service, job_name: str) -> Iterator[Training]:
    with training_with(shared_planner, job_name) as training:
        yield training


def test_L5_every_step_after_a_rollback_is_planned_from_new_rollouts(redis_url: str, tmp_path: Path) -> None:
    planner = Service("planner", redis_url, tmp_path, RELIBRA_RETAINED_STEPS="6")
    with training_with(planner, "job") as training:
        first = [training.train(step, seed=step) for step in range(1, 11)]
        # The second time it goes back to a step that has expired: retained_steps is 6.
        for seed, steps in ((100, range(6, 11)), (200, range(2, 4))):
            epoch = training.roll_back(steps[0])
            training.reporter.follow(epoch)
            again = [training.train(step, seed=seed + step) for step in steps]
            assert {each.id.epoch for each in again} == {epoch}
            versions = [each.id.version for each in [*first, *again]]
            assert versions == sorted(set(versions)), "a version went back"
            assert not {each.digest for each in first} & {each.digest for each in again}, "an old plan came back"
            first += again
    planner.stop()


@pytest.mark.long
def test_S4_sequences_of_before_are_refused_by_name_and_later_ones_are_taken(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = training.reporter
    for step in (1, 2, 3):
        training.train(step, seed=step)
    may_hear, follow = threading.Event(), reporter.follow
    monkeypatch.setattr(reporter, "follow", lambda epoch: may_hear.wait() and follow(epoch))
    before = training.roll_back(2)
    # A worker that has not heard of it yet sends sequences of the step that is sampled again.
    training.sample(2, seed=77)
    may_hear.set()
    with pytest.raises(RolledBack, match=r"attempt 1 of job .* is over: attempt 2 began .* went back to step 2"):
        reporter.flush(timeout_s=60)
    with pytest.raises(NotFound, match="8 of 8 scheduled sequences were never reported for step 2"):
        training.submit(2)
    # It hears by itself.
    eventually(lambda: reporter.epoch == before, within_s=60)
    assert training.train(2, seed=88).id.epoch == before


def test_L5_the_step_that_failed_may_be_repeated(training: Training) -> None:
    training.train(1, seed=1)
    training.train(2, seed=2)
    training.sample(2, seed=3)
    with pytest.raises(Conflict, match=rf"other counts.*call PlannerClient.rollback\('{training.job_id}', 2\)"):
        training.reporter.flush(timeout_s=60)
    with pytest.raises(Conflict, match=rf"another schedule.*`relibra jobs rollback {training.job_id} 2`"):
        training.submit(2, Schedule.round_robin(4, 2, CLUSTER))
    training.reporter.follow(training.roll_back(2))
    assert training.fetch(2, wait_s=0) is None
    training.train(2, seed=3)


def test_all_processes_of_a_launch_may_say_it(training: Training) -> None:
    address = training.planner.address
    with PlannerClient(address, attempt="launch-1") as second, PlannerClient(address) as stranger:
        assert training.register(second) == training.register(training.client)
        epoch = training.roll_back(3)
        assert second.rollback(training.job_id, 3) == epoch
        assert training.register(training.client) == epoch
        with pytest.raises(InvalidInput, match="epoch: expected the attempt of the caller"):
            stranger.rollback(training.job_id, 3)


def test_an_operator_lets_a_job_go_back_and_its_trainer_follows(training: Training) -> None:
    for step in (1, 2):
        training.train(step, seed=step)
    before, job_id = training.reporter.epoch, training.job_id
    command = [sys.executable, "-m", "relibra.cli", "jobs", "rollback", job_id, "2"]
    command += ["--redis-url", training.planner.redis_url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == f"job {job_id} went back to step 2, in attempt 2\n"
    eventually(lambda: training.reporter.epoch > before, within_s=60)
    assert training.train(2, seed=9).id.epoch == training.reporter.epoch


def test_L5_agents_follow_and_use_no_plan_and_send_no_report_of_before(training: Training) -> None:
    for step in (1, 2):
        training.train(step, seed=step)
    with training.session() as session:
        first = session.wait(1, 60).plan
        # The plan of the next step comes ahead of time, and then the training goes back to that step.
        session.prefetch(2)
        eventually(lambda: 2 in session._fetched)
        training.reporter.follow(epoch := training.roll_back(2))
        session.report(executed(2))
        session.rollback(2)
        session.report(executed(1))
        again = training.train(2, seed=7)
        fetched = session.wait(2, 60).plan
        assert first is not None
        assert fetched is not None
        assert (fetched.id, fetched.digest) == (again.id, again.digest)
        assert fetched.id.epoch == epoch > first.id.epoch


def test_S4_reports_that_waited_during_a_rollback_do_not_count_for_what_is_done_again(
    training: Training, run: Loop
) -> None:
    for step in (1, 2, 3):
        training.train(step, seed=step)
    store = Store.open(training.planner.redis_url)
    with training.session() as session:
        assert session.wait(1, 60).plan is not None
        training.roll_back(2)
        # This rank has not heard of it yet.
        for phase in Phase:
            session.report(dataclasses.replace(executed(3), phase=phase))
        eventually(lambda: not session._reports)
        again = run(store.get_job(training.job_id))
        assert run(store.get_refusals(again)) == []
        session.report(executed(1))
        session.rollback(2)
        session.report(executed(1))
        training.reporter.follow(again.epoch)
        training.train(2, seed=7)
        session.report(executed(2))
        eventually(lambda: not session._reports)
        assert run(store.num_reports(again, [1, 2, 3])) == [1, 1, 0]
        assert run(store.get_refusals(again)) == []
    run(store.close())


def executed(step: int) -> ExecutionReport:
    return ExecutionReport(
        step=step,
        phase=Phase.UPDATE,
        ep_group=0,
        ep_rank=0,
        applied=None,
        reason="",
        realised_load_ML=np.ones((2, MODEL.num_layers), dtype=np.int64),
        reorder_sent_bytes=0,
        replica_sent_bytes=0,
        plan_wait_s=0.0,
    )
