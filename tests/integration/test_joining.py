"""Launches as processes of their own, which share a token: a driver that registers, and a trainer rank that joins."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from harness import child_process
from harness.services import Loop, Service
from relibra.store import EmbeddedRedis, Store

PATIENT_S = 60.0


class Process:
    """A `harness.launch_process`."""

    def __init__(
        self, role: str, address: str, job_id: str, folder: Path, *, token: str, slots: int, timeout_s: float
    ) -> None:
        self.log = folder / f"{role}-{len(list(folder.glob('*.log')))}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                child_process.command("harness.launch_process", role, address, job_id, str(slots), str(timeout_s)),
                env=child_process.environment(RELIBRA_ATTEMPT=token),
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
    service = Service("planner", redis.url, folder)
    yield service
    service.stop()


Start = Callable[..., Process]


@pytest.fixture
def start(planner: Service, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    processes: list[Process] = []

    def begin(role: str, token: str, *, slots: int = 1, timeout_s: float = PATIENT_S) -> Process:
        job_id = job_of(request)
        processes.append(
            Process(role, planner.address, job_id, tmp_path, token=token, slots=slots, timeout_s=timeout_s)
        )
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


@pytest.mark.long
def test_L5_the_launch_that_starts_last_is_planned_and_a_live_one_before_it_trains_on_without_plans(
    start: Start, redis: EmbeddedRedis, request: pytest.FixtureRequest
) -> None:
    driver, rank = start("driver", "one"), start("rank", "one")
    epoch = driver.heard()["epoch"]
    driver.told(1)
    assert rank.told(1)["epoch"] == epoch
    for process in (driver, rank):
        process.send(signal.SIGSTOP)
    heir, rank_of_heir = start("driver", "two", slots=2), start("rank", "two", slots=2)
    later = heir.heard()["epoch"]
    assert later > epoch
    for process in (driver, rank):
        process.send(signal.SIGCONT)
    heir.told(1)
    assert rank_of_heir.told(1)["epoch"] == later
    for step in (2, 3):
        answer = rank.told(step)
        assert (answer["epoch"], answer["lack"]) == (None, "other_launch")
        assert "attempt 1 of job" in answer["reason"]
        assert f":{heir.pid}" in answer["reason"]
    assert rank.log.read_text().count("training goes on without plans") == 1
    assert attempts(redis, job_of(request)) == [2, 1]


def test_L5_a_rank_without_the_token_of_its_driver_gets_no_plan_and_hears_what_to_do(start: Start) -> None:
    driver, stranger = start("driver", "one"), start("rank", "", timeout_s=1.0)
    driver.heard()
    driver.told(1)
    answer = stranger.told(1)
    assert answer["epoch"] is None
    assert "no process has registered job" in answer["reason"]
    assert "give its token to all processes of the launch, as RELIBRA_ATTEMPT" in answer["reason"]


def test_L5_ranks_that_stay_join_the_attempt_of_a_driver_that_started_again(start: Start) -> None:
    driver, rank = start("driver", "always"), start("rank", "always")
    epoch = driver.heard()["epoch"]
    driver.told(1)
    assert rank.told(1)["epoch"] == epoch
    driver.send(signal.SIGKILL)
    again = start("driver", "always")
    later = again.heard()["epoch"]
    again.told(1)
    assert rank.told(1)["epoch"] == later > epoch


def test_L2_after_redis_lost_its_data_ranks_find_the_attempt_that_their_driver_registers_anew(
    start: Start, redis: EmbeddedRedis
) -> None:
    driver, rank = start("driver", "one"), start("rank", "one")
    epoch = driver.heard()["epoch"]
    driver.told(1)
    assert rank.told(1)["epoch"] == epoch
    with Redis.from_url(redis.url) as client:
        schema = client.get("relibra:schema")
        assert schema is not None
        client.flushall()
        client.set("relibra:schema", schema)
    again = driver.told("register")["epoch"]
    assert again > epoch
    driver.told(2)
    assert rank.told(2)["epoch"] == again
