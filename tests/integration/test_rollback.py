"""A training that goes back to an earlier step without a restart, with a real planner and a real Redis."""

import dataclasses
import subprocess
import sys
import threading
from collections.abc import Iterator
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


@pytest.fixture
def planner(redis_url: str, tmp_path: Path) -> Iterator[Service]:
    service = Service("planner", redis_url, tmp_path, RELIBRA_RETAINED_STEPS="6")
    yield service
    service.stop()


@pytest.fixture
def launch(planner: Service) -> Iterator[PlannerClient]:
    """The driver of the training, whose token reporters may have too."""
    with PlannerClient(planner.address, timeout_s=60, attempt="launch-1") as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
        yield client


@pytest.fixture
def reporter(planner: Service) -> Iterator[RolloutReporter]:
    """A reporter of the launch."""
    with RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt="launch-1") as reporter:
        yield reporter


def agent_config(planner: Service) -> AgentConfig:
    return AgentConfig(planner_address=planner.address, job_id="job", model=MODEL, cluster=CLUSTER, attempt="launch-1")


def sample(reporter: RolloutReporter, step: int, seed: int) -> None:
    for index, sequence_id in enumerate(IDS):
        assert reporter.report(step, sequence_id, routed_experts(1000 * seed + index, 5 + index))


def plan(client: PlannerClient, step: int) -> StepPlan:
    client.submit_schedule("job", step, IDS, SCHEDULE)
    return client.fetch_plan("job", step, MODEL, wait_s=60)


def train(client: PlannerClient, reporter: RolloutReporter, step: int, seed: int) -> StepPlan:
    sample(reporter, step, seed)
    assert reporter.flush(timeout_s=60) == len(IDS)
    fetched = plan(client, step)
    assert fetched.step == step
    return fetched


def test_L5_every_step_after_a_rollback_is_planned_from_new_rollouts(
    launch: PlannerClient, reporter: RolloutReporter
) -> None:
    first = [train(launch, reporter, step, seed=step) for step in range(1, 11)]
    # The second time it goes back to a step that has expired: retained_steps is 6.
    for seed, steps in ((100, range(6, 11)), (200, range(2, 4))):
        epoch = launch.rollback("job", steps[0])
        reporter.follow(epoch)
        again = [train(launch, reporter, step, seed=seed + step) for step in steps]
        assert {each.id.epoch for each in again} == {epoch}
        versions = [each.id.version for each in [*first, *again]]
        assert versions == sorted(set(versions)), "a version went back"
        assert not {each.digest for each in first} & {each.digest for each in again}, "an old plan came back"
        first += again


def test_S4_sequences_of_before_are_refused_by_name_and_later_ones_are_taken(
    launch: PlannerClient, reporter: RolloutReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        train(launch, reporter, step, seed=step)
    may_hear, follow = threading.Event(), reporter.follow
    monkeypatch.setattr(reporter, "follow", lambda epoch: may_hear.wait() and follow(epoch))
    before = launch.rollback("job", 2)
    # A worker that has not heard of it yet sends sequences of the step that is sampled again.
    sample(reporter, 2, seed=77)
    may_hear.set()
    with pytest.raises(RolledBack, match=r"attempt 1 of job .job. is over: attempt 2 began .* went back to step 2"):
        reporter.flush(timeout_s=60)
    with pytest.raises(NotFound, match="8 of 8 scheduled sequences were never reported for step 2"):
        plan(launch, 2)
    # It hears by itself.
    eventually(lambda: reporter.epoch == before, within_s=60)
    assert train(launch, reporter, 2, seed=88).id.epoch == before


def test_L5_the_step_that_failed_may_be_repeated(launch: PlannerClient, reporter: RolloutReporter) -> None:
    train(launch, reporter, 1, seed=1)
    train(launch, reporter, 2, seed=2)
    sample(reporter, 2, seed=3)
    with pytest.raises(Conflict, match=r"other counts.*call PlannerClient.rollback\('job', 2\)"):
        reporter.flush(timeout_s=60)
    with pytest.raises(Conflict, match=r"another schedule.*`relibra jobs rollback job 2`"):
        launch.submit_schedule("job", 2, IDS[:4], Schedule.round_robin(4, 2, CLUSTER))
    reporter.follow(launch.rollback("job", 2))
    assert launch.fetch_plan("job", 2, MODEL) is None
    train(launch, reporter, 2, seed=3)


def test_all_processes_of_a_launch_may_say_it(planner: Service, launch: PlannerClient) -> None:
    with PlannerClient(planner.address, attempt="launch-1") as second, PlannerClient(planner.address) as stranger:
        assert second.register_job("job", MODEL, CLUSTER, PARAMS) == launch.register_job("job", MODEL, CLUSTER, PARAMS)
        epoch = launch.rollback("job", 3)
        assert second.rollback("job", 3) == epoch
        assert launch.register_job("job", MODEL, CLUSTER, PARAMS) == epoch
        with pytest.raises(InvalidInput, match="epoch: expected the attempt of the caller"):
            stranger.rollback("job", 3)


def test_an_operator_lets_a_job_go_back_and_its_trainer_follows(
    planner: Service, redis_url: str, launch: PlannerClient, reporter: RolloutReporter
) -> None:
    for step in (1, 2):
        train(launch, reporter, step, seed=step)
    before = reporter.epoch
    command = [sys.executable, "-m", "relibra.cli", "jobs", "rollback", "job", "2", "--redis-url", redis_url]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == "job job went back to step 2: attempt 2 takes over all earlier steps\n"
    eventually(lambda: reporter.epoch > before, within_s=60)
    assert train(launch, reporter, 2, seed=9).id.epoch == reporter.epoch


def test_L5_agents_follow_and_use_no_plan_and_send_no_report_of_before(
    planner: Service, launch: PlannerClient, reporter: RolloutReporter
) -> None:
    for step in (1, 2):
        train(launch, reporter, step, seed=step)
    session = Session(agent_config(planner))
    try:
        first = session.wait(1, 60).plan
        # The plan of the next step comes ahead of time, and then the training goes back to that step.
        session.prefetch(2)
        eventually(lambda: 2 in session._fetched)
        reporter.follow(epoch := launch.rollback("job", 2))
        session.report(executed(2))
        session.rollback(2)
        session.report(executed(1))
        again = train(launch, reporter, 2, seed=7)
        fetched = session.wait(2, 60).plan
        assert first is not None
        assert fetched is not None
        assert (fetched.id, fetched.digest) == (again.id, again.digest)
        assert fetched.id.epoch == epoch > first.id.epoch
    finally:
        session.close()


def test_S4_reports_that_waited_during_a_rollback_do_not_count_for_what_is_done_again(
    planner: Service, launch: PlannerClient, reporter: RolloutReporter, store: Store, run: Loop
) -> None:
    for step in (1, 2, 3):
        train(launch, reporter, step, seed=step)
    session = Session(agent_config(planner))
    try:
        assert session.wait(1, 60).plan is not None
        launch.rollback("job", 2)
        # This rank has not heard of it yet.
        for phase in Phase:
            session.report(dataclasses.replace(executed(3), phase=phase))
        eventually(lambda: not session._reports)
        again = run(store.get_job("job"))
        assert run(store.get_refusals(again)) == []
        session.report(executed(1))
        session.rollback(2)
        session.report(executed(1))
        reporter.follow(again.epoch)
        train(launch, reporter, 2, seed=7)
        session.report(executed(2))
        eventually(lambda: not session._reports)
        assert run(store.num_reports(again, [1, 2, 3])) == [1, 1, 0]
        assert run(store.get_refusals(again)) == []
    finally:
        session.close()


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
