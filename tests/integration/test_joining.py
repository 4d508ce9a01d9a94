"""Launches as processes of their own, which share no token: a driver that registers, and a trainer rank that joins."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from harness import child_process
from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, eventually
from relibra.errors import AlreadyRunning
from relibra.store import EmbeddedRedis, Store
from relibra.store.keys import JobKeys
from relibra.wire.client import PlannerClient

SILENCE_S = 5.0
PATIENT_S = 60.0


class Process:
    """A `harness.launch_process`."""

    def __init__(self, role: str, address: str, job_id: str, folder: Path, slots: int, timeout_s: float) -> None:
        self.log = folder / f"{role}-{len(list(folder.glob('*.log')))}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                child_process.command("harness.launch_process", role, address, job_id, str(slots), str(timeout_s)),
                env=child_process.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def heard(self) -> dict[str, Any]:
        """Return the next line that the process says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended: {self.log.read_text()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def told(self, line: object) -> dict[str, Any]:
        """Tell the process something, and return what it says."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.heard()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        if number is signal.SIGKILL:
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def planner(redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("planner")
    service = Service("planner", redis.url, folder, RELIBRA_ATTEMPT_SILENCE_S=str(SILENCE_S))
    yield service
    service.stop()


Start = Callable[..., Process]


@pytest.fixture
def start(planner: Service, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    processes: list[Process] = []

    def begin(role: str, *, slots: int = 1, timeout_s: float = PATIENT_S) -> Process:
        processes.append(Process(role, planner.address, job_of(request), tmp_path, slots, timeout_s))
        return processes[-1]

    yield begin
    for each in processes:
        each.send(signal.SIGKILL)


def job_of(request: pytest.FixtureRequest) -> str:
    return f"job-{abs(hash(request.node.name)) % 10**8}"


def attempts(redis: EmbeddedRedis, job_id: str) -> list[int]:
    with Loop() as run:
        store = Store.open(redis.url)
        numbers = [each.number for each in run(store.list_attempts(job_id))]
        run(store.close())
    return numbers


def wait_until_bound(redis: EmbeddedRedis, job_id: str) -> None:
    """Wait until the trainer ranks of the job have joined its attempt for good."""
    with Redis.from_url(redis.url) as client:
        eventually(lambda: client.hget(JobKeys(job_id).of("job"), "claimed_at") == b"0", within_s=PATIENT_S)


def test_L5_a_launch_is_refused_while_another_lives_and_admitted_after_its_death(
    start: Start, redis: EmbeddedRedis, request: pytest.FixtureRequest
) -> None:
    driver, rank = start("driver"), start("rank")
    epoch, ranks = driver.heard()["epoch"], rank.heard()["owner"]
    driver.told(1)
    assert rank.told(1)["epoch"] == epoch

    # A second launch, while the first one is alive and silent for longer than an attempt may be.
    second = start("driver", slots=2, timeout_s=2 * SILENCE_S)
    refused = second.heard()["error"]
    assert refused.startswith("AlreadyRunning: job ")
    assert f":{driver.pid} launched at" in refused
    other = start("rank", slots=2, timeout_s=1.0)
    other.heard()
    answer = eventually(lambda: (told := other.told(1))["lack"] == "other_launch" and told, within_s=PATIENT_S)
    assert answer["epoch"] is None
    assert f"is being trained by the trainer ranks of {ranks}, in attempt 1" in answer["reason"]

    # The driver dies; the trainer ranks keep the attempt alive.
    driver.send(signal.SIGKILL)
    third = start("driver", slots=2, timeout_s=2 * SILENCE_S)
    assert f":{driver.pid} launched at" in third.heard()["error"]

    # All of the first launch is dead: the next one is admitted, with another cluster, and its rank follows.
    rank.send(signal.SIGKILL)
    fourth = start("driver", slots=2)
    later = fourth.heard()["epoch"]
    assert later > epoch
    assert attempts(redis, job_of(request)) == [2, 1]
    fourth.told(1)
    eventually(lambda: other.told(1)["epoch"] == later, within_s=PATIENT_S)


def test_L5_a_launch_that_was_frozen_finds_its_attempt_over_and_trains_on(
    start: Start, redis: EmbeddedRedis, request: pytest.FixtureRequest
) -> None:
    driver, rank = start("driver"), start("rank")
    driver.heard(), rank.heard()
    driver.told(1)
    assert rank.told(1)["epoch"]
    wait_until_bound(redis, job_of(request))
    assert rank.told(1)["epoch"]
    for each in (driver, rank):
        each.send(signal.SIGSTOP)
    heir = start("driver")
    assert heir.heard()["epoch"]
    for each in (driver, rank):
        each.send(signal.SIGCONT)
    for step in (2, 3):
        answer = rank.told(step)
        assert (answer["epoch"], answer["lack"]) == (None, "other_launch")
        assert "attempt 1 of job" in answer["reason"]
        assert f":{heir.pid}" in answer["reason"]
    eventually(lambda: "is over: attempt 2 began" in driver.log.read_text(), within_s=PATIENT_S)
    assert rank.log.read_text().count("training goes on without plans") == 1
    assert rank.log.read_text().count("attempt 2 began") == 1


def test_L2_after_redis_lost_its_data_ranks_find_the_attempt_that_their_driver_registers_anew(
    start: Start, redis: EmbeddedRedis, request: pytest.FixtureRequest
) -> None:
    driver, rank = start("driver"), start("rank")
    epoch = driver.heard()["epoch"]
    rank.heard()
    driver.told(1)
    assert rank.told(1)["epoch"] == epoch
    wait_until_bound(redis, job_of(request))
    with Redis.from_url(redis.url) as client:
        schema = client.get("relibra:schema")
        assert schema is not None
        client.flushall()
        client.set("relibra:schema", schema)
    again = driver.told("register")["epoch"]
    assert again > epoch
    driver.told(2)
    assert rank.told(2)["epoch"] == again


def test_S4_after_an_outage_a_live_launch_has_time_to_be_heard_before_another_takes_its_place(
    planner: Service, redis: EmbeddedRedis, tmp_path: Path
) -> None:
    """The planner was away for longer than an attempt may be silent, and a second launch is the first that it hears."""
    with PlannerClient(planner.address, attempt="first") as first:
        first.register_job("away", MODEL, CLUSTER, PARAMS)
    with Redis.from_url(redis.url) as client:
        client.hincrby(JobKeys("away").of("job"), "seen_at", -60_000)
    # The second launch has this long to ask.
    silence_s = 10
    again = Service("planner", redis.url, tmp_path, RELIBRA_ATTEMPT_SILENCE_S=str(silence_s))
    try:
        with PlannerClient(again.address, attempt="second") as second:
            with pytest.raises(AlreadyRunning, match="two launches cannot share a job id"):
                second.register_job("away", MODEL, CLUSTER, PARAMS, takeover_timeout_s=0)
            assert attempts(redis, "away") == [1]
            second.register_job("away", MODEL, CLUSTER, PARAMS)
            assert attempts(redis, "away") == [2, 1]
    finally:
        again.stop()
