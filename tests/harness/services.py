"""Real services for tests: a Redis per session, and planner and status processes that a test can kill.

A folder whose tests need services imports the fixtures it uses into its conftest.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from redis import Redis

from relibra.planning import Cluster, Model, Plan, PlanParams, Schedule, StepLoad
from relibra.planning.load import home_loads, imbalance
from relibra.planning.plan import Prediction
from relibra.rollout import RolloutReporter
from relibra.store import EmbeddedRedis, Store
from relibra.wire.client import PlannerClient

T = TypeVar("T")

MODEL = Model(num_layers=3, num_experts=8, top_k=2, expert_weight_size_bytes=1 << 20, expert_state_size_bytes=7 << 20)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
PARAMS = PlanParams(seed=3)
START_TIMEOUT_S = 240.0


def eventually(condition: Callable[[], T], *, within_s: float = 120.0) -> T:
    """Return the first true value of `condition`, or fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {within_s} s"
        time.sleep(0.01)
    return value


def routed_experts(seed: int, num_rows: int, model: Model = MODEL) -> NDArray[np.uint8]:
    """Return skewed expert ids `[T, L, K]`, distinct within a token."""
    rng = np.random.default_rng(seed)
    logits = rng.gumbel(size=(num_rows, model.num_layers, model.num_experts)) + np.linspace(0, 2, model.num_experts)
    return np.argsort(-logits, axis=-1)[..., : model.top_k].astype(np.uint8)


def count(routed_TLK: NDArray[np.integer], model: Model = MODEL) -> NDArray[np.unsignedinteger]:
    """Counts `[L, E]` in their narrowest dtype, written down anew so that tests do not trust the code they test."""
    counts_LE = np.stack(
        [np.bincount(routed_TLK[:, layer].ravel(), minlength=model.num_experts) for layer in range(model.num_layers)]
    )
    return counts_LE.astype(np.min_scalar_type(counts_LE.max()))


def plain_plan(
    counts_SLE: NDArray[np.integer], schedule: Schedule, reason: str = "every expert at home", *, shift: int = 0
) -> Plan:
    """Return a valid plan without replicas: the home of expert e is rank e // (E/R), or `shift` ranks further."""
    load = StepLoad.of(counts_SLE, schedule, CLUSTER)
    home_LE = (CLUSTER.identity_placement(MODEL) + shift) % CLUSTER.num_ranks
    loads_MLR = home_loads(load.load_MLE, home_LE, CLUSTER.num_ranks)
    return Plan(
        model=MODEL,
        cluster=CLUSTER,
        params=PARAMS,
        schedule=schedule,
        home_rank_LE=home_LE.astype(np.int32),
        replica_index_Y4=np.zeros((0, 4), dtype=np.int32),
        load_MLE=load.load_MLE,
        replica_tokens_Y=np.zeros(0, dtype=np.int64),
        lower_bound_ML=loads_MLR.mean(axis=-1),
        prediction=Prediction(
            imbalance_before=imbalance(loads_MLR),
            imbalance_after=imbalance(loads_MLR),
            imbalance_bound=1.0,
            num_moved_experts=0,
            num_replicas=0,
            reorder_size_bytes=0,
            replica_size_bytes=0,
        ),
        reason=reason,
    )


def _can_listen(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Service:
    """A process of `relibra planner` or `relibra status`; the constructor returns when the service is ready."""

    def __init__(self, verb: str, redis_url: str, folder: Path, *, port: int = 0, **environment: str) -> None:
        self._verb = verb
        self._environment = environment
        self.redis_url = redis_url
        self._ready_file = folder / f"{verb}.json"
        self._log = folder / f"{verb}.log"
        self._port = port
        self.start()

    def start(self) -> None:
        """Start the service, on the port that it had before, once no connection of another process has it."""
        if self._port:
            eventually(lambda: _can_listen(self._port), within_s=START_TIMEOUT_S)
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "relibra.cli", self._verb, "--redis-url", self.redis_url]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self._port), "--ready-file", str(self._ready_file)],
                stdout=log,
                stderr=log,
                env={"RELIBRA_NUM_SOLVERS": "1"} | os.environ | self._environment,  # starts sooner
            )
        try:
            eventually(self._is_ready, within_s=START_TIMEOUT_S)
        except BaseException:
            self.process.kill()
            raise
        self.address: str = json.loads(self._ready_file.read_text())[self._verb]
        self._port = int(self.address.rpartition(":")[2])

    def kill(self) -> None:
        """Send SIGKILL to the service, and wait until it is dead."""
        self.process.kill()
        assert self.process.wait(timeout=60) == -signal.SIGKILL

    def stop(self) -> int:
        """Send SIGTERM to the service if it runs; return its exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def log(self) -> str:
        """Return what the service has logged so far."""
        return self._log.read_text()

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"{self._verb} ended at once:\n{self.log()}"
        return self._ready_file.exists()


class Loop:
    """An event loop for tests that are not coroutines."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __call__(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self._runner.run(wait())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._runner.close()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A Redis that tests share and leave alive."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The URL of an empty Redis."""
    with Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def run() -> Iterator[Loop]:
    """An event loop: `run(coroutine)` returns the result of the coroutine."""
    with Loop() as loop:
        yield loop


@pytest.fixture
def store(redis_url: str, run: Loop) -> Iterator[Store]:
    """An empty store; tests await its methods through `run`."""
    store = Store.open(redis_url)
    yield store
    run(store.close())


@pytest.fixture
def planner(redis_url: str, tmp_path: Path) -> Iterator[Service]:
    """A planner process on an empty store."""
    service = Service("planner", redis_url, tmp_path)
    yield service
    service.stop()


@pytest.fixture(scope="session")
def shared_planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A planner process that tests share; each test leaves it alive and uses a job of its own."""
    with EmbeddedRedis(tmp_path_factory.mktemp("shared-redis")) as server:
        service = Service("planner", server.url, tmp_path_factory.mktemp("shared-planner"))
        yield service
        service.stop()


@pytest.fixture
def client(shared_planner: Service) -> Iterator[PlannerClient]:
    """A client of the shared planner."""
    with PlannerClient(shared_planner.address) as client:
        yield client


@pytest.fixture
def job_name(request: pytest.FixtureRequest) -> str:
    """The id of a job that no other test uses."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{name[:40]}-{zlib.crc32(request.node.nodeid.encode()):08x}"


@pytest.fixture
def job_id(client: PlannerClient, job_name: str) -> str:
    """The id of a registered job that no other test uses."""
    client.register_job(job_name, MODEL, CLUSTER, PARAMS)
    return job_name


def report_sequences(address: str, job_id: str, step: int, num_sequences: int = 8) -> list[str]:
    """Report sequences of different lengths; return their ids when all are durable."""
    ids = [f"seq-{index}" for index in range(num_sequences)]
    with RolloutReporter(address, job_id, num_experts=MODEL.num_experts) as reporter:
        for index, sequence_id in enumerate(ids):
            assert reporter.report(step, sequence_id, routed_experts(index, 5 + index))
        assert reporter.flush(timeout_s=120) == num_sequences
    return ids


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
