"""One fault on a Cluster and one through Sentinel; `make test-robustness` runs the whole suite on both."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.redis_deployments import Deployment, Failover, ThreePrimaries
from harness.robustness.history import violations
from harness.robustness.world import World, fetch, is_serving, prepare_step, submit_step, take_step
from harness.services import eventually

pytestmark = [pytest.mark.robustness, pytest.mark.integration]


@pytest.mark.long
@pytest.mark.parametrize("start", [pytest.param(ThreePrimaries, id="cluster"), pytest.param(Failover, id="sentinel")])
def test_L2_L3_a_primary_is_killed(start: Callable[[Path], Deployment], tmp_path: Path) -> None:
    (folder := tmp_path / "redis").mkdir()
    with World(tmp_path, start(folder), []) as world:
        planner = world.start_planner()
        before = take_step(planner, 1)
        # These jobs lie in other slots: no question of the planner may span the slots of several jobs.
        others = [take_step(planner, 1, f"other-{index}").digest for index in range(3)]
        assert set(others) == {before.digest}
        prepare_step(planner, 2)
        world.redis.kill()
        world.redis.recover()
        submit_step(planner, 2)
        after = fetch(planner, 2)
        assert (after.id.epoch, after.id.version) == (before.id.epoch, before.id.version + 1)
        assert fetch(planner, 1).digest == before.digest
        eventually(lambda: is_serving(planner))
        assert violations(world.history.read()) == []
