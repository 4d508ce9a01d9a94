"""One Redis, planners on it, and one small step, with every fault that real processes can have."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis import Redis
from services_harness import CLUSTER, MODEL, PARAMS, Service, eventually, report_sequences

from relibra.errors import RelibraError, Unavailable
from relibra.planning import RankPlan, Schedule
from relibra.store import EmbeddedRedis
from relibra.wire.client import PlannerClient

SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
PATIENT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A line of the table."""

    fault: str
    promises: str
    recovery_s: float


@dataclass
class Clock:
    """How long it took until everything worked again."""

    started_at: float = field(default_factory=time.monotonic)
    recovery_s: float = float("nan")

    def restart(self) -> None:
        """Count from now: the fault is over, or another part may take over."""
        self.started_at = time.monotonic()

    def stop(self) -> None:
        """Everything works again."""
        self.recovery_s = time.monotonic() - self.started_at


class World:
    """A Redis and any number of planners, all stopped at the end whatever happened to them."""

    def __init__(self, folder: Path, verdicts: list[Verdict]) -> None:
        self._folder = folder
        self._verdicts = verdicts
        self.redis = EmbeddedRedis(folder / "redis")
        self.redis.start()
        self._planners: list[Service] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for planner in self._planners:
            for signal_ in (signal.SIGCONT, signal.SIGKILL):
                if planner.process.poll() is None:
                    planner.process.send_signal(signal_)
            planner.process.wait()
        if self.redis.poll() is None:
            os.kill(self.redis.pid, signal.SIGCONT)
        self.redis.stop()

    def start_planner(self, **environment: str) -> Service:
        """Start one more planner."""
        folder = self._folder / f"planner-{len(self._planners)}"
        folder.mkdir()
        self._planners.append(Service("planner", self.redis.url, folder, **environment))
        return self._planners[-1]

    @contextmanager
    def fault(self, fault: str, promises: str) -> Iterator[Clock]:
        """Run a fault and its checks; a failure names the promises that are broken."""
        clock = Clock()
        try:
            yield clock
        except AssertionError as error:
            raise AssertionError(f"broke {promises} - {fault}: {error}") from error
        self._verdicts.append(Verdict(fault=fault, promises=promises, recovery_s=clock.recovery_s))

    def redis_client(self) -> "Redis":
        """Redis as a person with redis-cli sees it."""
        return Redis(unix_socket_path=str(self.redis.socket_path), socket_timeout=PATIENT_S)

    def kill_redis(self) -> None:
        """SIGKILL Redis, and see it dead."""
        os.kill(self.redis.pid, signal.SIGKILL)
        assert eventually(self.redis.poll) == -signal.SIGKILL

    def restart_redis(self) -> None:
        """Start Redis again on what it wrote."""
        self.redis = EmbeddedRedis(self.redis.data_dir)
        self.redis.start()


def take_step(planner: Service, step: int, job_id: str = "job") -> RankPlan:
    """Take a step of a job all the way, trying again as clients do; return its plan."""

    def attempt() -> RankPlan | None:
        try:
            with PlannerClient(planner.address, timeout_s=10) as client:
                client.register_job(job_id, MODEL, CLUSTER, PARAMS)
                ids = report_sequences(planner.address, job_id, step)
                client.submit_schedule(job_id, step, ids, SCHEDULE)
                return client.fetch_plan(job_id, step, MODEL, 0, wait_s=10)
        except RelibraError as error:
            if not error.retryable:
                raise
            return None

    return eventually(attempt, within_s=PATIENT_S)


def prepare_step(planner: Service, step: int) -> None:
    """Register the job and report the sequences of a step, all but its schedule."""
    with PlannerClient(planner.address, timeout_s=30) as client:
        client.register_job("job", MODEL, CLUSTER, PARAMS)
    report_sequences(planner.address, "job", step)


def submit_step(planner: Service, step: int) -> None:
    """Submit the schedule of a prepared step."""
    with PlannerClient(planner.address, timeout_s=30) as client:
        client.submit_schedule("job", step, [f"seq-{index}" for index in range(8)], SCHEDULE)


def fetch(planner: Service, step: int, job_id: str = "job") -> RankPlan:
    """Fetch a plan that will come."""
    with PlannerClient(planner.address, timeout_s=10) as client:
        return eventually(
            lambda: _unless_unavailable(lambda: client.fetch_plan(job_id, step, MODEL, 0, wait_s=10)),
            within_s=PATIENT_S,
        )


def _unless_unavailable(call: Callable[[], RankPlan]) -> RankPlan | None:
    try:
        return call()
    except Unavailable:
        return None


def is_serving(planner: Service) -> bool:
    """What a health probe of an orchestrator sees."""
    with grpc.insecure_channel(planner.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def solvers_of(planner: Service) -> list[int]:
    """Pids of the solver processes of a planner."""
    children = Path(f"/proc/{planner.process.pid}/task/{planner.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def stop_solvers(planner: Service) -> list[int]:
    """Freeze the solvers of a planner, so that what they solve stays unsolved."""
    pids = eventually(lambda: solvers_of(planner))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids
