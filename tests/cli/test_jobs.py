import subprocess
import sys

import pytest
from services_harness import CLUSTER, MODEL, PARAMS, Loop, redis_server, redis_url, run, store  # noqa: F401

from relibra.errors import UnknownJob
from relibra.store import Store


def test_jobs_are_listed_and_removed(store: Store, run: Loop, redis_url: str) -> None:  # noqa: F811
    def relibra(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "relibra.cli", "jobs", *arguments, "--redis-url", redis_url]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    assert f"{job.epoch:016x}" in relibra("list").stdout
    assert relibra("remove", "job").stdout == "job job is removed\n"
    with pytest.raises(UnknownJob):
        run(store.get_job("job"))
    assert relibra("remove", "job").returncode == 2
