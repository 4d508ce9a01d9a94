"""One Redis, any number of planners on it, and small steps, under the faults that real processes can have."""

import os
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.redis_deployments import Deployment
from harness.robustness.history import Event, History
from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, eventually, report_sequences
from relibra.errors import RelibraError
from relibra.planning import Schedule, StepPlan
from relibra.store import Role, Store
from relibra.wire.client import PlannerClient

T = TypeVar("T")

SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
PATIENT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One line of the table of results."""

    redis: str
    fault: str
    promises: str
    recovery_s: float
    figures: str


@dataclass
class Clock:
    """Measures the time until everything works again."""

    started_at: float = field(default_factory=time.monotonic)
    recovery_s: float = float("nan")
    figures: str = ""
    """Other measurements, as text for the table."""

    def restart(self) -> None:
        """Count from now, because the fault is over or another process may take over."""
        self.started_at = time.monotonic()

    def stop(self) -> None:
        """Note that everything works again."""
        self.recovery_s = time.monotonic() - self.started_at


class Planner(Service):
    """A planner process, and the history of its clients."""

    history: History

    def wake(self) -> None:
        """Send SIGCONT to the planner."""
        self.process.send_signal(signal.SIGCONT)


class World:
    """A Redis and any number of planners; leaving the context stops all of them, even frozen ones."""

    def __init__(self, folder: Path, redis: Deployment, verdicts: list[Verdict]) -> None:
        self._folder = folder
        self._verdicts = verdicts
        self.redis = redis
        self.history = History(folder / "history.jsonl")
        self._planners: list[Planner] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for planner in self._planners:
            for signal_ in (signal.SIGCONT, signal.SIGKILL):
                if planner.process.poll() is None:
                    planner.process.send_signal(signal_)
            planner.process.wait()
        let_go(_frozen)  # a solver that outlives its planner ends when it runs again
        _frozen.clear()
        self.redis.stop()

    def start_planner(self, **environment: str) -> Planner:
        """Start one more planner."""
        folder = self._folder / f"planner-{len(self._planners)}"
        folder.mkdir()
        planner = Planner("planner", self.redis.url, folder, **{"RELIBRA_NUM_SOLVERS": "2"} | environment)
        planner.history = self.history
        self._planners.append(planner)
        return planner

    @contextmanager
    def fault(self, fault: str, promises: str) -> Iterator[Clock]:
        """Run a fault and its checks; a failure names the promises that are broken."""
        clock = Clock()
        try:
            yield clock
        except AssertionError as error:
            raise AssertionError(f"broke {promises} - {fault}: {error}") from error
        self._verdicts.append(
            Verdict(
                redis=type(self.redis).__name__,
                fault=fault,
                promises=promises,
                recovery_s=clock.recovery_s,
                figures=clock.figures,
            )
        )


def take_step(planner: Planner, step: int, job_id: str = "job") -> StepPlan:
    """Take a step of a job from its sequences to its plan and return the plan.

    This function and those below repeat calls that fail with a retryable error.
    """

    def attempt() -> StepPlan:
        _prepare(planner, step, job_id)
        _submit(planner, step, job_id)
        return _fetch(planner, step, job_id)

    return again(attempt)


def prepare_step(planner: Planner, step: int, job_id: str = "job") -> None:
    """Register the job and report the sequences of a step; its schedule is still missing."""
    again(lambda: _prepare(planner, step, job_id))


def submit_step(planner: Planner, step: int, job_id: str = "job") -> None:
    """Submit the schedule of a prepared step."""
    again(lambda: _submit(planner, step, job_id))


def fetch(planner: Planner, step: int, job_id: str = "job") -> StepPlan:
    """Fetch a plan, and wait until it is there."""
    return again(lambda: _fetch(planner, step, job_id))


def _prepare(planner: Planner, step: int, job_id: str) -> None:
    epoch = register(planner, job_id)
    asked_after = len(planner.history)
    ids = report_sequences(planner.address, job_id, step)
    planner.history.tell(
        Event(kind="acknowledged", asked_after=asked_after, job_id=job_id, epoch=epoch, step=step, sequence_ids=ids)
    )


def register(planner: Planner, job_id: str) -> int:
    """Register a job; return its epoch."""
    asked_after = len(planner.history)
    with PlannerClient(planner.address) as client:
        epoch = client.register_job(job_id, MODEL, CLUSTER, PARAMS)
    planner.history.tell(Event(kind="registered", asked_after=asked_after, job_id=job_id, epoch=epoch))
    return epoch


def _submit(planner: Planner, step: int, job_id: str) -> None:
    epoch, asked_after = register(planner, job_id), len(planner.history)
    with PlannerClient(planner.address, timeout_s=30) as client:
        client.submit_schedule(job_id, step, [f"seq-{index}" for index in range(8)], SCHEDULE)
    planner.history.tell(Event(kind="submitted", asked_after=asked_after, job_id=job_id, epoch=epoch, step=step))


def _fetch(planner: Planner, step: int, job_id: str) -> StepPlan:
    asked_after = len(planner.history)
    with PlannerClient(planner.address) as client:
        plan = client.fetch_plan(job_id, step, MODEL, wait_s=10)
    planner.history.tell(
        Event(
            kind="planned",
            asked_after=asked_after,
            job_id=job_id,
            epoch=plan.id.epoch,
            step=step,
            version=plan.id.version,
            digest=plan.digest.hex(),
        )
    )
    return plan


def again(call: Callable[[], T]) -> T:
    """Return what `call` returns when it no longer fails with a retryable error."""

    def attempt() -> tuple[T] | None:
        try:
            return (call(),)
        except RelibraError as error:
            if not error.retryable:
                raise
            return None

    return eventually(attempt, within_s=PATIENT_S)[0]


def is_serving(planner: Service) -> bool:
    """Return what the health probe of an orchestrator sees."""
    with grpc.insecure_channel(planner.address) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def solvers_of(planner: Service) -> list[int]:
    """Return the process ids of the solvers of a planner."""
    children = Path(f"/proc/{planner.process.pid}/task/{planner.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def resident_kib(pid: int) -> int:
    """Return the resident memory of a process in KiB."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def figure(service: Service, metric: str) -> float:
    """Return a figure of a service that serves metrics; labels, if any, belong to the name: `name{label="value"}`."""
    with urllib.request.urlopen(metrics_url(service), timeout=30) as response:
        lines = response.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{metric} "))


def metrics_url(service: Service) -> str:
    """Return the URL at which a service shows its metrics."""
    return service.log().partition("metrics on ")[2].split()[0]


def create_tokens(world: World) -> tuple[str, str]:
    """Create the tokens of two trainers, of job `victim` and of job `attacker`."""

    async def create() -> list[str]:
        async with Store.open(world.redis.url) as store:
            return [(await store.create_token(job_id, Role.TRAINER))[1] for job_id in ("victim", "attacker")]

    with Loop() as run:
        victim, attacker = run(create())
    return victim, attacker


_frozen: list[int] = []
"""All solvers that `stop_solvers` froze in this world."""


def stop_solvers(planner: Service, *, only_next: bool = False) -> list[int]:
    """Freeze the solvers of a planner, so that no solve ends; return their process ids.

    `only_next` freezes the solver that takes the next step, and leaves the others.
    """
    # A planner whose solver is not warm begins no solve, and one that is still to come would not be frozen.
    eventually(lambda: is_serving(planner))
    pids = eventually(lambda: solvers_of(planner))
    if only_next:
        pids = pids[-1:]  # the pool takes the solver that became idle last
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    _frozen.extend(pids)
    return pids


def let_go(pids: Sequence[int]) -> None:
    """Send SIGCONT to processes that were frozen, unless they have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def hold_solve(world: World, planner: Planner, step: int = 1, *, only_next: bool = False) -> list[int]:
    """Take a step until a planner solves it with a frozen solver; return the process ids of the frozen ones."""
    prepare_step(planner, step)
    pids = stop_solvers(planner, only_next=only_next)
    submit_step(planner, step)
    with world.redis.client() as redis:
        eventually(lambda: redis.get("relibra:{job}:lease"))
    return pids
