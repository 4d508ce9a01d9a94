"""An older relibra beside today's: clients and planners work together, and services refuse the Redis of the other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import older_relibra, whole_step
from harness.services import Loop, Service
from relibra.errors import Unsupported
from relibra.store import Store
from relibra.store.keys import SCHEMA_VERSION

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables of processes that run the older relibra."""
    return older_relibra.unpack(tmp_path_factory.mktemp("older"))


def _run(older: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, env=os.environ | older, capture_output=True, text=True, timeout=240, check=False)


def test_an_older_client_takes_a_step_with_todays_planner(
    older: dict[str, str], shared_planner: Service, run: Loop
) -> None:
    ended = _run(older, whole_step.__file__, shared_planner.address, "older-client")
    assert ended.returncode == 0, ended.stderr
    said: dict[str, Any] = json.loads(ended.stdout)
    folders = older["PYTHONPATH"].split(os.pathsep)
    assert all(any(Path(each).is_relative_to(folder) for folder in folders) for each in said["sources"])
    store = Store.open(shared_planner.redis_url)
    ((update,),) = run(store.get_executions(run(store.get_job("older-client")), [1]))
    run(store.close())
    assert (update.num_applied, update.missing) == (whole_step.CLUSTER.num_ranks, ())
    assert (update.duration_s, update.num_processes) == (0.0, 0), "the older client does not say"
    today = json.loads(json.dumps(whole_step.messages()))
    assert today != said["messages"], "choose an older commit: the protocol has not changed since"
    for name, fields in said["messages"].items():
        assert fields.items() <= today[name].items(), "a field of the protocol has another meaning: that is relibra.v2"


def test_todays_client_takes_a_step_with_an_older_planner(
    older: dict[str, str], redis_url: str, run: Loop, tmp_path: Path
) -> None:
    planner = Service("planner", redis_url, tmp_path, **older)
    try:
        assert whole_step.take_step(planner.address, "job").endswith(".1")
    finally:
        planner.stop()
    # The older planner wrote this Redis.
    refusal = (
        f"holds schema version {older_relibra.SCHEMA_VERSION}, .* writes {SCHEMA_VERSION}; start on an empty Redis"
    )
    store = Store.open(redis_url)
    for check in (store.check, store.check_schema):
        with pytest.raises(Unsupported, match=refusal):
            run(check())
    run(store.close())


@pytest.mark.parametrize("verb", ["planner", "status"])
def test_S9_an_older_service_refuses_todays_redis(older: dict[str, str], shared_planner: Service, verb: str) -> None:
    ended = _run(older, "-m", "relibra.cli", verb, "--redis-url", shared_planner.redis_url, "--port", "0")
    assert ended.returncode == 2, ended
    assert f"holds schema version {SCHEMA_VERSION}, this relibra reads" in " ".join(ended.stderr.split())
    assert "upgrade relibra" in ended.stderr
