"""SIGKILL of planner and Redis at the worst moments; no client repeats a call."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from harness.robustness.world import is_serving
from harness.services import CLUSTER, MODEL, PARAMS, Service, eventually, is_alive, report_sequences
from relibra.errors import NotReady
from relibra.planning import Schedule
from relibra.store import EmbeddedRedis
from relibra.store.keys import JobKeys
from relibra.wire.client import PlannerClient

pytestmark = pytest.mark.integration

SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)


def workers_of(planner: Service) -> list[int]:
    """Return the pids of the solver processes that a planner has started."""
    children = Path(f"/proc/{planner.process.pid}/task/{planner.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def stop_worker(planner: Service) -> int:
    """Freeze the solvers, so that a step stays unsolved as long as the test needs."""
    eventually(lambda: is_serving(planner))
    (worker,) = eventually(lambda: workers_of(planner))
    os.kill(worker, signal.SIGSTOP)
    return worker


def plan_without_faults(planner: Service, step: int) -> bytes:
    """Return the digest of the plan that these sequences and this schedule get in a job of their own."""
    with PlannerClient(planner.address) as client:
        client.register_job("undisturbed", MODEL, CLUSTER, PARAMS)
        ids = report_sequences(planner.address, "undisturbed", step)
        client.submit_schedule("undisturbed", step, ids, SCHEDULE)
        return client.fetch_plan("undisturbed", step, MODEL, wait_s=60).digest


@pytest.mark.long
def test_L3_a_planner_killed_between_ingest_and_plan_and_between_schedule_and_plan(planner: Service) -> None:
    with PlannerClient(planner.address, timeout_s=60) as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
        # The reporter is closed when this returns, so nothing can be reported again.
        ids = report_sequences(planner.address, "job", 1)

    # With no channel open, gRPC is not yet waiting before it connects again when the planner is back.
    planner.kill()
    planner.start()

    with PlannerClient(planner.address, timeout_s=60) as client:
        worker = stop_worker(planner)
        client.submit_schedule("job", 1, ids, SCHEDULE)
        with pytest.raises(NotReady, match=r"being solved|waiting for a solver"):
            client.fetch_plan("job", 1, MODEL, wait_s=0.2)

        planner.kill()
        os.kill(worker, signal.SIGKILL)
        planner.start()

    # The client of before may still wait before it connects again, and no call is repeated here.
    with PlannerClient(planner.address, timeout_s=60) as client:
        plan = client.fetch_plan("job", 1, MODEL, wait_s=60)
        assert plan.id.version == 1
        assert plan.digest == plan_without_faults(planner, 1)


@pytest.mark.long
def test_L3_a_published_plan_is_the_same_after_a_restart(planner: Service) -> None:
    with PlannerClient(planner.address, timeout_s=60) as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
        client.submit_schedule("job", 1, report_sequences(planner.address, "job", 1), SCHEDULE)
        before = client.fetch_plan("job", 1, MODEL, wait_s=60)
    planner.kill()
    planner.start()
    with PlannerClient(planner.address, timeout_s=60) as client:
        after = client.fetch_plan("job", 1, MODEL)
        assert (after.id, after.digest) == (before.id, before.digest)


@pytest.mark.long
def test_a_killed_planner_leaves_no_worker_behind_and_a_killed_worker_is_replaced(planner: Service) -> None:
    with PlannerClient(planner.address, timeout_s=60) as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
        worker = stop_worker(planner)
        client.submit_schedule("job", 1, report_sequences(planner.address, "job", 1), SCHEDULE)
        os.kill(worker, signal.SIGKILL)
        assert client.fetch_plan("job", 1, MODEL, wait_s=60).id.version == 1
        (worker,) = workers_of(planner)
        planner.kill()
        eventually(lambda: not is_alive(worker))


class RestartableRedis:
    """A Redis that can be killed and restarted on its data."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.server = EmbeddedRedis(data_dir)
        self.server.start()

    def kill_and_start_again(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)
        assert eventually(self.server.poll) == -signal.SIGKILL
        self.server = EmbeddedRedis(self._data_dir)
        self.server.start()


@pytest.fixture
def restartable_redis(tmp_path: Path) -> Iterator[RestartableRedis]:
    restartable_redis = RestartableRedis(tmp_path / "data")
    yield restartable_redis
    restartable_redis.server.stop()


def test_L3_what_was_acknowledged_survives_a_killed_redis(restartable_redis: RestartableRedis, tmp_path: Path) -> None:
    planner = Service("planner", restartable_redis.server.url, tmp_path)
    try:
        with PlannerClient(planner.address, timeout_s=60) as client:
            epoch = client.register_job("job", MODEL, CLUSTER, PARAMS)
            ids = report_sequences(planner.address, "job", 1)
            restartable_redis.kill_and_start_again()
            with Redis.from_url(restartable_redis.server.url) as redis:
                assert redis.hlen(JobKeys("job").attempt(epoch).step(1, "counts")) == 8
            client.submit_schedule("job", 1, ids, SCHEDULE)
            plan = client.fetch_plan("job", 1, MODEL, wait_s=60)
            restartable_redis.kill_and_start_again()
            again = client.fetch_plan("job", 1, MODEL, wait_s=60)
            assert (again.id, again.digest) == (plan.id, plan.digest)
            assert client.register_job("job", MODEL, CLUSTER, PARAMS) == epoch == plan.id.epoch
            client.submit_schedule("job", 2, report_sequences(planner.address, "job", 2), SCHEDULE)
            assert client.fetch_plan("job", 2, MODEL, wait_s=60).id.version == 2
    finally:
        planner.stop()
