"""Something else writes into the keys of one job: planner and status service name it, and serve the others."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from harness.robustness.world import World, prepare_step, submit_step, take_step
from harness.services import Service
from relibra.errors import Corrupt
from relibra.store.keys import JobKeys

pytestmark = [pytest.mark.robustness, pytest.mark.integration, pytest.mark.long]


def test_S6_S9_a_broken_job_is_set_aside_by_name_until_it_is_mended_or_removed(world: World, tmp_path: Path) -> None:
    planner = world.start_planner()
    keys = JobKeys("job")
    status = Service("status", world.redis.url, tmp_path)

    def shown(path: str) -> str:
        request = urllib.request.Request(f"{status.address}{path}", headers={"Accept": "text/html"})
        return str(urllib.request.urlopen(request, timeout=60).read().decode())

    def is_broken(job_id: str) -> bool:
        (line,) = (each for each in shown("/metrics").splitlines() if f'job_broken{{job_id="{job_id}"}}' in each)
        return line.endswith(" 1.0")

    try:
        with world.fault("a key of a job is overwritten", "S6 S9") as clock, world.redis.client() as redis:
            for job_id in ("job", "other"):
                take_step(planner, 1, job_id)
            prepare_step(planner, 2)
            pending = keys.attempt(int(redis.hget(keys.of("job"), "epoch"), 16)).of("pending")
            redis.set(pending, "oops")
            clock.restart()
            for step in (2, 3):
                take_step(planner, step, "other")
            clock.stop()
            with pytest.raises(Corrupt, match=r"key .*:pending in Redis is no zset"):
                submit_step(planner, 2)
            assert (is_broken("job"), is_broken("other")) == (True, False)
            assert pending in shown("/")
            assert planner.log().count("job job is set aside") == 1
            redis.delete(pending)
            take_step(planner, 3)
            assert not is_broken("job")
            redis.delete(keys.of("job"))
            redis.rpush(keys.of("job"), "oops")
            assert is_broken("job")
            command = [sys.executable, "-m", "relibra.cli", "jobs", "remove", "job", "--alive"]
            subprocess.run([*command, "--redis-url", world.redis.url], check=True)
            assert 'job_id="job"' not in shown("/metrics")
            take_step(planner, 1)
            take_step(planner, 4, "other")
    finally:
        assert status.stop() == 0
