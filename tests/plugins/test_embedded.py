"""Planners that a job starts for itself, as two ranks find them, and after rank 0 was killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness import child_process
from harness.services import eventually, is_alive
from harness.thread_ranks import ThreadRanks
from relibra.errors import Unauthenticated, Unavailable
from relibra.planning import Cluster, Model
from relibra.plugins import embedded
from relibra.plugins.settings import PluginSettings
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials

MODEL = Model(num_layers=1, num_experts=4, top_k=2)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ranks")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            child_process.command("harness.embedded_ranks", str(folder)),
            stdout=log,
            stderr=log,
            env=child_process.environment(CUDA_VISIBLE_DEVICES="", TMPDIR=str(folder)),
            start_new_session=True,
        )
    files = [folder / f"rank{rank}.json" for rank in range(2)]

    def has_settled() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        return all(file.exists() for file in files)

    try:
        eventually(has_settled, within_s=240)
        yield [json.loads(file.read_text()) for file in files]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def register(access: dict[str, Any], job: str, token: str | None = None) -> int:
    with PlannerClient(access["address"], credentials=Credentials(token=token)) as client:
        return client.register_job(job, MODEL, CLUSTER)


@pytest.mark.long
def test_ranks_on_one_machine_share_a_planner_on_loopback(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["local"] == ranks[1]["local"]
    assert ranks[0]["local"]["address"].startswith("127.0.0.1:")
    assert ranks[0]["local"]["token"] is None
    assert register(ranks[0]["local"], "local")


def test_S6_a_planner_for_several_machines_serves_only_callers_with_its_token(ranks: list[dict[str, Any]]) -> None:
    access = ranks[1]["spread"]
    assert access == ranks[0]["spread"]
    with pytest.raises(Unauthenticated):
        register(access, "spread")
    with pytest.raises(Unauthenticated):
        register(access, "spread", "a token of nobody")
    # Models beside the policy are jobs of their own.
    assert register(access, "spread", access["token"])
    assert register(access, "spread-critic", access["token"])


def test_planners_and_their_data_end_with_a_rank_0_that_is_killed(ranks: list[dict[str, Any]], request: Any) -> None:
    services = descendants(ranks[0]["pid"])
    assert len(services) >= 8  # twice `relibra up`, a planner, a status service and a Redis
    folders = {Path(f"/proc/{pid}/cwd").readlink() for pid in services if is_redis(pid)}
    os.kill(ranks[0]["pid"], signal.SIGKILL)
    eventually(lambda: not any(is_alive(pid) for pid in services))
    assert len(folders) == 2
    assert not any(folder.exists() for folder in folders)


def test_a_planner_that_does_not_start_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Unavailable, match=r"(?s)did not start: exit status 1; its log .*planner extra.*redis-server"):
        embedded.start("broken", is_local=True)


def test_a_planner_that_hangs_while_it_starts_is_ended_and_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, pid_file = tmp_path / "hangs", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\ntrap '' TERM\necho $$ > {pid_file}\nwhile :; do sleep 0.1; done\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.5)
    with pytest.raises(Unavailable, match=r"did not start: not ready after 0\.5 s; its log"):
        embedded.start("hangs", is_local=True)
    eventually(lambda: pid_file.exists() and not is_alive(int(pid_file.read_text())))


def test_S1_whatever_keeps_the_planner_from_starting_is_raised_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = ThreadRanks(2)
    monkeypatch.setattr(embedded, "dist", ranks)
    monkeypatch.setattr(embedded, "start", mock.Mock(side_effect=subprocess.TimeoutExpired("relibra tokens", 60)))

    def settle(_: int) -> str:
        with pytest.raises(Unavailable) as refused:
            embedded.resolve_planner(PluginSettings(planner="embedded", job="job"))
        return str(refused.value)

    (refusal,) = set(ranks.run(settle))
    assert refusal.startswith("the embedded planner did not start: TimeoutExpired: ")


def test_L1_a_model_that_is_built_again_after_the_planner_died_trains_without_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = ThreadRanks(2)
    monkeypatch.setattr(embedded, "dist", ranks)
    with socket.create_server(("127.0.0.1", 0)) as planner:
        address = f"127.0.0.1:{planner.getsockname()[1]}"
        monkeypatch.setattr(embedded, "start", mock.Mock(return_value=embedded.Access(address=address)))

        def settle(_: int) -> str:
            return embedded.resolve_planner(PluginSettings(planner="embedded", job="job")).planner

        assert ranks.run(settle) == [address] * 2
    assert ranks.run(settle) == [address] * 2
    embedded._check_reachable.cache_clear()
    with pytest.raises(Unavailable, match="cannot be reached from"):
        ranks.run(settle)


@pytest.mark.parametrize(
    ("master", "listens", "name"),
    [("10.0.0.7", "0.0.0.0", "10.0.0.7"), ("fd00::7", "::", "[fd00::7]"), ("node-0", "0.0.0.0", "node-0")],
)
def test_other_machines_reach_the_planner_where_they_reach_rank_0(master: str, listens: str, name: str) -> None:
    assert embedded.addresses(master) == (listens, name)


@pytest.mark.parametrize("master", ["", "localhost", "127.0.0.1", "::1"])
def test_a_name_of_this_machine_only_is_not_told_to_others(master: str) -> None:
    assert embedded.addresses(master)[1] == embedded.addresses("")[1] not in ("", "localhost")


def is_redis(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().startswith("redis")


def descendants(pid: int) -> list[int]:
    """Return all processes below a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    children = [child for child, parent in parents.items() if parent == pid]
    return children + [below for child in children for below in descendants(child)]
