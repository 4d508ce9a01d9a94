"""A training that its scheduler starts again under the same job id, with a real planner and a real Redis."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from harness import child_process
from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually, routed_experts
from relibra.errors import AlreadyRunning, NotReady, RelibraError, StaleEpoch, Unavailable
from relibra.planning import RankPlan, Schedule
from relibra.rollout import RolloutReporter
from relibra.store.keys import JobKeys
from relibra.wire.client import PlannerClient

IDS = [f"seq-{index}" for index in range(8)]
SCHEDULE = Schedule.round_robin(len(IDS), 2, CLUSTER)


@pytest.fixture
def planner(redis_url: str, tmp_path: Path) -> Iterator[Service]:
    # No launch falls silent because a machine is busy, but only as `freeze` says.
    service = Service("planner", redis_url, tmp_path, RELIBRA_ATTEMPT_SILENCE_S="600")
    yield service
    service.stop()


def raises_unavailable(call: Callable[[], object]) -> bool:
    """Return whether the planner could not be reached."""
    try:
        call()
    except RelibraError as error:
        return isinstance(error, Unavailable)
    return False


def freeze(client: PlannerClient, planner: Service) -> None:
    """Silence a client, as if its process hung or was cut off: nothing has renewed its attempt for a long time."""
    for heartbeat in client._heartbeats.values():
        heartbeat.stop()
    for heartbeat in client._heartbeats.values():
        heartbeat.thread.join()
    age(planner)


def age(planner: Service) -> None:
    """Let the current attempt look as if nobody had been heard of it since 1970, longer than any planner waits."""
    with Redis.from_url(planner.redis_url) as redis:
        redis.hset(JobKeys("job").of("job"), "seen_at", 0)


def train(client: PlannerClient, address: str, attempt: str, step: int, seed: int) -> RankPlan:
    """Report the sequences that `seed` samples for a step, and return the plan of the step."""
    with RolloutReporter(address, "job", num_experts=MODEL.num_experts, attempt=attempt) as reporter:
        for index, sequence_id in enumerate(IDS):
            assert reporter.report(step, sequence_id, routed_experts(1000 * seed + index, 5 + index))
        assert reporter.flush() == len(IDS)
    client.submit_schedule("job", step, IDS, SCHEDULE)
    return client.fetch_plan("job", step, MODEL, 0, wait_s=60)


def test_L5_every_step_is_planned_again_after_each_restart_with_new_rollouts(planner: Service) -> None:
    digests, epochs = set(), set()
    for launch in range(3):
        with PlannerClient(planner.address, timeout_s=60, attempt=f"launch-{launch}") as client:
            epochs.add(epoch := client.register_job("job", MODEL, CLUSTER, PARAMS))
            for step in range(1, 4):
                plan = train(client, planner.address, f"launch-{launch}", step, seed=10 * launch + step)
                assert (plan.id.epoch, plan.id.version, plan.step) == (epoch, step, step)
                digests.add(plan.digest)
            freeze(client, planner)
    assert len(epochs) == 3
    assert len(digests) == 9, "a plan of an earlier attempt was handed out"


def test_L5_a_live_launch_refuses_another_one_and_an_older_one_is_told_that_it_is_over(planner: Service) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        PlannerClient(planner.address, attempt="two") as second,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        first.submit_schedule("job", 1, report(planner, "one"), SCHEDULE)
        with pytest.raises(AlreadyRunning, match=r"attempt 1, which \S+:\d+ launched at"):
            second.register_job("job", MODEL, CLUSTER, PARAMS, takeover_timeout_s=0)
        with pytest.raises(AlreadyRunning, match="attempt 1"):
            second.submit_schedule("job", 1, IDS, SCHEDULE)
        freeze(first, planner)
        second.register_job("job", MODEL, CLUSTER, PARAMS)
        for late in (
            lambda: first.submit_schedule("job", 2, IDS, SCHEDULE),
            lambda: first.fetch_plan("job", 1, MODEL, 0),
        ):
            with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over: attempt 2 began"):
                late()


def test_L5_a_launch_that_goes_on_calling_is_never_taken_over(planner: Service) -> None:
    with (
        Redis.from_url(planner.redis_url) as redis,
        PlannerClient(planner.address, attempt="one") as first,
        PlannerClient(planner.address, attempt="two") as second,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        report(planner, "one")
        freeze(first, planner)
        for call in (
            lambda: first.submit_schedule("job", 1, IDS, SCHEDULE),
            lambda: first.fetch_plan("job", 1, MODEL, 0, wait_s=60),
        ):
            age(planner)

            def is_heard(call: Callable[[], object] = call) -> bool:
                call()  # a planner notes once a second that an attempt is alive
                return int(redis.hget(JobKeys("job").of("job"), "seen_at") or 0) > 0

            eventually(is_heard)
            with pytest.raises(AlreadyRunning):
                second.register_job("job", MODEL, CLUSTER, PARAMS, takeover_timeout_s=0)


def report(planner: Service, attempt: str, seed: int = 1) -> list[str]:
    with RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt=attempt) as reporter:
        for index, sequence_id in enumerate(IDS):
            assert reporter.report(1, sequence_id, routed_experts(1000 * seed + index, 5 + index))
    return IDS


def test_S9_reports_of_an_older_attempt_are_refused_where_the_worker_looks(planner: Service) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        PlannerClient(planner.address, attempt="two") as second,
        RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts, attempt="one") as bound,
        RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts) as following,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        for each in (bound, following):
            each.report(1, IDS[0], routed_experts(0, 5))
            assert each.flush() == 1
        freeze(first, planner)
        epoch = second.register_job("job", MODEL, CLUSTER, PARAMS)
        bound.report(1, IDS[1], routed_experts(1, 5))
        with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over"):
            bound.flush()
        eventually(lambda: following.epoch == epoch)
        following.report(1, IDS[0], routed_experts(7, 6))
        assert following.flush() == 1


def test_L5_an_idle_worker_hears_of_the_next_attempt_from_a_planner_that_was_restarted(planner: Service) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts) as worker,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        worker.report(1, IDS[0], routed_experts(0, 5))
        assert worker.flush() == 1
        freeze(first, planner)
        planner.kill()
        planner.start()
        before = worker.epoch
        with PlannerClient(planner.address, attempt="two") as second:
            # Channels of one process share the time until they connect again.
            eventually(lambda: not raises_unavailable(lambda: second.fetch_plan("job", 1, MODEL, 0)))
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
        eventually(lambda: reporter._trouble is not None)
        freeze(first, planner)
        second.register_job("job", MODEL, CLUSTER, PARAMS)
        assert reporter.flush() == 1
        assert reporter.epoch == second.register_job("job", MODEL, CLUSTER, PARAMS)


def test_L5_a_process_of_a_launch_gets_no_plan_of_another_attempt(planner: Service) -> None:
    with (
        PlannerClient(planner.address, attempt="one") as first,
        PlannerClient(planner.address, attempt="two") as second,
        PlannerClient(planner.address, attempt="one") as first_agent,
        PlannerClient(planner.address, attempt="two") as second_agent,
    ):
        first.register_job("job", MODEL, CLUSTER, PARAMS)
        digest = train(first, planner.address, "one", step=1, seed=1).digest
        assert first_agent.fetch_plan("job", 1, MODEL, 0).digest == digest
        with pytest.raises(NotReady, match="has not registered job 'job' yet"):
            second_agent.fetch_plan("job", 1, MODEL, 0)
        freeze(first, planner)
        second.register_job("job", MODEL, CLUSTER, PARAMS)
        with pytest.raises(NotReady, match="no plan yet"):
            second_agent.fetch_plan("job", 1, MODEL, 0)
        with pytest.raises(StaleEpoch, match="attempt 1 of job 'job' is over"):
            first_agent.fetch_plan("job", 1, MODEL, 0)


def test_L5_torchrun_restarts_its_workers_uncounted_when_a_node_joins(redis_url: str, tmp_path: Path) -> None:
    """No worker fails, so TORCHELASTIC_RESTART_COUNT stays 0, and the planner must tell the workers by their age."""
    planner = Service("planner", redis_url, tmp_path)  # the old attempt is not silent for its 15 s
    told = tmp_path / "told"
    told.touch()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-conf=last_call_timeout=1"]
    command += ["-m", "harness.restarts.registering", planner.address, str(told)]
    # With the store that torchrun keeps by default, a node that joins waits for an address that nobody sends again.
    environment = child_process.environment(OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for num_nodes in (1, 2):
            with (tmp_path / f"node-{num_nodes}.log").open("wb") as log:
                nodes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
            eventually(lambda num_nodes=num_nodes: len(told.read_text().splitlines()) == num_nodes)
    finally:
        for node in nodes:
            node.terminate()  # torchrun ends its workers
        for node in nodes:
            node.wait(timeout=60)
        planner.stop()
    first, second = map(json.loads, told.read_text().splitlines())
    assert first["restart"] == second["restart"] == "0"
    assert second["epoch"] > first["epoch"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def test_L5_a_reporter_of_the_next_attempt_is_not_told_the_attempt_before(
    planner: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher restarts its workers at once, so the planner answered a reporter of the attempt before just now."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    for restart in range(5):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restart))
        with (
            PlannerClient(planner.address) as client,
            RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts) as reporter,
        ):
            epoch = client.register_job("job", MODEL, CLUSTER, PARAMS, takeover_timeout_s=0)
            for step in range(2):
                reporter.report(step, IDS[0], routed_experts(10 * restart + step, 5))
                assert reporter.flush() == 1
            assert reporter.epoch == epoch
