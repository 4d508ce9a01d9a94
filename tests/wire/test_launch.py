"""What a process can tell about the launch that it belongs to."""

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from relibra.planning.launch import Launch
from relibra.wire.launch import age_s, launch_of, worker_age_s


def launch(environment: Mapping[str, str], token: str | None = None, parent: str = "7 1000") -> Launch:
    return launch_of(environment, token=token, host="host-a", pid=4711, parent=parent, random_token="random")


def test_a_token_comes_from_the_argument_or_the_environment_or_is_random() -> None:
    assert launch({"RELIBRA_ATTEMPT": "env"}, token="argument").token == "argument"
    assert launch({"RELIBRA_ATTEMPT": "env"}).token == "env"
    assert launch({}) == Launch(token="random", owner="host-a:4711")


@pytest.mark.parametrize(
    ("environment", "launcher", "restart"),
    [
        (
            {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2", "SLURM_JOB_ID": "5"},
            "torchelastic none host-a 7 1000",
            2,
        ),
        ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}, "slurm 5.0", 1),
        ({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}, "slurm 5.0", 0),
        # Job ids of Ray begin anew with each cluster, and address and port may be the same.
        ({"RAY_JOB_ID": "01", "MASTER_ADDR": "head", "MASTER_PORT": "4321"}, "", 0),
        ({"TORCHELASTIC_RESTART_COUNT": "many"}, "torchelastic  host-a 7 1000", 0),
        ({"SLURM_JOB_ID": "5"}, "", 0),
    ],
)
def test_launchers_that_are_known(environment: dict[str, str], launcher: str, restart: int) -> None:
    found = launch(environment)
    assert (found.launch, found.restart) == (launcher, restart)


def test_L5_torchrun_started_again_under_one_run_id_is_another_launcher() -> None:
    environment = {"TORCHELASTIC_RUN_ID": "my-job", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert launch(environment, parent="7 1000").launch != launch(environment, parent="9 2000").launch


def test_L5_only_torchrun_starts_all_workers_of_a_launch_at_once() -> None:
    assert worker_age_s({"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}) is None
    age_s = worker_age_s({"TORCHELASTIC_RESTART_COUNT": "0"})
    started = subprocess.run(
        [sys.executable, "-c", "from relibra.wire.launch import *; print(worker_age_s(os.environ))"],
        env=os.environ | {"TORCHELASTIC_RESTART_COUNT": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert age_s is not None
    assert 0 <= float(started.stdout) < age_s


def test_services_keep_a_hash_of_the_token_only() -> None:
    assert Launch().token_hash == ""
    assert "secret" not in Launch(token="secret").token_hash
    assert Launch(token="secret").token_hash == Launch(token="secret").token_hash != Launch(token="other").token_hash


def test_an_age_is_unknown_where_the_uptime_is_that_of_a_container() -> None:
    assert age_s(100.0, 40.0) == 60.0
    assert age_s(100.0, 4000.0) is None
