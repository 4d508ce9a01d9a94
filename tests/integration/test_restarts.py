"""A training that its scheduler starts again under the same job id, with a real planner and a real Redis."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually, routed_experts
from relibra.errors import NotReady, RelibraError, StaleEpoch, Unavailable
from relibra.planning import Schedule, StepPlan
from relibra.rollout import RolloutReporter
from relibra.wire import launch
from relibra.wire.client import PlannerClient

IDS = [f"seq-{index}" for index in range(8)]
SCHEDULE = Schedule.round_robin(len(IDS), 2, CLUSTER)


@pytest.fixture
def planner(redis_url: str, tmp_path: Path) -> Iterator[Service]:
    service = Service("planner", redis_url, tmp_path)
    yield service
    service.stop()


def raises_unavailable(call: Callable[[], object]) -> bool:
    """Return whether the planner could not be reached."""
    try:
        call()
    except RelibraError as error:
        return isinstance(error, Unavailable)
    return False


@pytest.fixture
def start_again(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let this process look like another one, as when its launcher starts it again."""
    return lambda: monkeypatch.setattr(launch, "_process_names", {})


def train(client: PlannerClient, address: str, attempt: str, step: int, seed: int) -> StepPlan:
    """Report the sequences that `seed` samples for a step, and return the plan of the step."""
    with RolloutReporter(address, "job", num_experts=MODEL.num_experts, attempt=attempt) as reporter:
        for index, sequence_id in enumerate(IDS):
            assert reporter.report(step, sequence_id, routed_experts(1000 * seed + index, 5 + index))
        assert reporter.flush() == len(IDS)
    client.submit_schedule("job", step, IDS, SCHEDULE)
    return client.fetch_plan("job", step, MODEL, wait_s=60)


def test_L5_every_step_is_planned_again_after_each_restart_with_new_rollouts(planner: Service) -> None:
    digests, epochs = set(), set()
    for number in range(3):
        with PlannerClient(planner.address, timeout_s=60, attempt=f"launch-{number}") as client:
            epochs.add(epoch := client.register_job("job", MODEL, CLUSTER, PARAMS))
            for step in range(1, 4):
                plan = train(client, planner.address, f"launch-{number}", step, seed=10 * number + step)
                assert (plan.id.epoch, plan.id.version, plan.step) == (epoch, step, step)
                digests.add(plan.digest)
    assert len(epochs) == 3
    assert len(digests) == 9, "a plan of an earlier attempt was handed out"


def test_S4_of_two_live_launches_the_later_one_trains_and_the_older_one_is_told_that_it_is_over(
    planner: Service,
) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        PlannerClient(planner.address, attempt="two") as second,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        first.submit_schedule("job", 1, report(planner, "one"), SCHEDULE)
        second.register_job("job", MODEL, CLUSTER, PARAMS)
        for late in (
            lambda: first.submit_schedule("job", 2, IDS, SCHEDULE),
            lambda: first.fetch_plan("job", 1, MODEL),
            lambda: first.register_job("job", MODEL, CLUSTER, PARAMS),
            lambda: report(planner, "one"),
        ):
            with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over: attempt 2 began"):
                late()
        assert train(second, planner.address, "two", step=1, seed=7).step == 1


@pytest.mark.long
def test_L5_a_training_that_starts_again_with_the_same_token_is_planned_again_with_workers_that_stay(
    planner: Service, start_again: Callable[[], None]
) -> None:
    """`RELIBRA_ATTEMPT` may stand in a script that starts the trainer in a loop, beside rollout workers that stay."""
    digests = set()
    with RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt="always") as worker:
        for number in range(3):
            start_again()
            with PlannerClient(planner.address, timeout_s=60, attempt="always") as client:
                epoch = client.register_job("job", MODEL, CLUSTER, PARAMS)
                eventually(lambda epoch=epoch: worker.epoch in (0, epoch))
                for index, sequence_id in enumerate(IDS):
                    assert worker.report(1, sequence_id, routed_experts(1000 * number + index, 5 + index))
                assert worker.flush() == len(IDS)
                client.submit_schedule("job", 1, IDS, SCHEDULE)
                plan = client.fetch_plan("job", 1, MODEL, wait_s=60)
                assert plan.id.epoch == epoch
                digests.add(plan.digest)
    assert len(digests) == 3


def report(planner: Service, attempt: str, seed: int = 1) -> list[str]:
    with RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt=attempt) as reporter:
        for index, sequence_id in enumerate(IDS):
            assert reporter.report(1, sequence_id, routed_experts(1000 * seed + index, 5 + index))
    return IDS


def test_L5_an_idle_worker_hears_of_the_next_attempt_from_a_planner_that_was_restarted(
    planner: Service, start_again: Callable[[], None]
) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt="one") as worker,
    ):
        before = first.register_job("job", MODEL, CLUSTER, PARAMS)
        worker.report(1, IDS[0], routed_experts(0, 5))
        assert worker.flush() == 1
        planner.kill()
        planner.start()
        start_again()
        with PlannerClient(planner.address, attempt="one") as second:
            # Channels of one process share the time until they connect again.
            eventually(lambda: not raises_unavailable(lambda: second.fetch_plan("job", 1, MODEL)))
            epoch = second.register_job("job", MODEL, CLUSTER, PARAMS)
            assert epoch > before
            eventually(lambda: worker.epoch == epoch)
            worker.report(1, IDS[0], routed_experts(7, 6))
            assert worker.flush() == 1


def test_L5_a_reporter_of_a_launch_waits_until_its_trainer_has_registered(planner: Service) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        PlannerClient(planner.address, attempt="two") as second,
        RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt="two") as reporter,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        reporter.report(1, IDS[0], routed_experts(0, 5))
        eventually(lambda: reporter.trouble is not None)
        second.register_job("job", MODEL, CLUSTER, PARAMS)
        assert reporter.flush() == 1
        assert reporter.epoch == second.register_job("job", MODEL, CLUSTER, PARAMS)


@pytest.mark.long
def test_L5_a_process_of_a_launch_gets_no_plan_of_another_attempt(planner: Service) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        PlannerClient(planner.address, attempt="two") as second,
        PlannerClient(planner.address, attempt="one") as first_agent,
        PlannerClient(planner.address, attempt="two") as second_agent,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        digest = train(first, planner.address, "one", step=1, seed=1).digest
        assert first_agent.fetch_plan("job", 1, MODEL).digest == digest
        with pytest.raises(NotReady, match="no process has registered job 'job' with the token of the caller"):
            second_agent.fetch_plan("job", 1, MODEL)
        second.register_job("job", MODEL, CLUSTER, PARAMS)
        assert second_agent.fetch_plan("job", 1, MODEL) is None
        with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over"):
            first_agent.fetch_plan("job", 1, MODEL)
