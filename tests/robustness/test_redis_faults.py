"""Redis is killed, frozen, full and wiped."""

import os
import signal

import pytest

from harness.redis_deployments import OneServer
from harness.robustness.world import PATIENT_S, World, fetch, is_serving, prepare_step, submit_step, take_step
from harness.services import CLUSTER, MODEL, PARAMS, eventually, routed_experts
from relibra.errors import Unavailable, UnknownJob
from relibra.rollout import RolloutReporter
from relibra.store import EmbeddedRedis
from relibra.store.keys import SCHEMA
from relibra.wire.client import PlannerClient

pytestmark = [pytest.mark.robustness, pytest.mark.integration]


def test_L2_L3_redis_killed_and_started_on_its_data(world: World) -> None:
    planner = world.start_planner()
    before = take_step(planner, 1)
    with world.fault("Redis gets SIGKILL, starts on its data", "L2 L3 S3 S4") as clock:
        prepare_step(planner, 2)
        world.redis.kill()
        eventually(lambda: not is_serving(planner))
        with PlannerClient(planner.address, timeout_s=5) as client, pytest.raises(Unavailable):
            client.fetch_plan("job", 1, MODEL)
        world.redis.recover()
        clock.restart()
        submit_step(planner, 2)
        after = fetch(planner, 2)
        clock.stop()
        eventually(lambda: is_serving(planner))
        assert (after.id.epoch, after.id.version) == (before.id.epoch, before.id.version + 1)
        assert fetch(planner, 1).digest == before.digest


def test_L1_L2_redis_that_hangs_holds_no_caller_longer_than_its_deadline(world: World) -> None:
    planner = world.start_planner()
    take_step(planner, 1)
    with world.fault("Redis gets SIGSTOP, wakes", "L1 L2") as clock:
        os.kill(world.redis.pid, signal.SIGSTOP)
        eventually(lambda: not is_serving(planner))
        with PlannerClient(planner.address, timeout_s=0.5) as client, pytest.raises(Unavailable, match="DEADLINE"):
            client.fetch_plan("job", 1, MODEL)
        os.kill(world.redis.pid, signal.SIGCONT)
        clock.restart()
        assert take_step(planner, 2).id.version == 2
        clock.stop()


@pytest.mark.long
def test_L1_S7_a_full_redis_refuses_and_recovers(world: World) -> None:
    planner = world.start_planner()
    take_step(planner, 1)
    with (
        world.fault("Redis is full, then is not", "L1 L2 L3") as clock,
        world.redis.client() as redis,
        RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts) as reporter,
    ):
        redis.config_set("maxmemory", "1")
        reporter.report(2, "seq", routed_experts(0, 5))
        eventually(lambda: reporter.trouble)
        with pytest.raises(Unavailable, match="maxmemory"):
            reporter.flush(timeout_s=0.1)
        assert fetch(planner, 1).id.version == 1
        redis.config_set("maxmemory", "0")
        clock.restart()
        assert reporter.flush(timeout_s=PATIENT_S) == 1
        clock.stop()


@pytest.mark.long
def test_S4_a_wiped_redis_begins_a_newer_epoch(world: World) -> None:
    planner = world.start_planner()
    before = take_step(planner, 1)
    with (
        world.fault("Redis is wiped (FLUSHALL)", "S4 L2") as clock,
        world.redis.client() as redis,
        PlannerClient(planner.address) as client,
    ):
        assert client.register_job("job", MODEL, CLUSTER, PARAMS) == before.id.epoch
        redis.flushall()

        def is_unknown() -> bool:
            try:
                return client.fetch_plan("job", 1, MODEL).id != before.id
            except UnknownJob:
                return True

        # A planner checks at most every quarter of a second whether a plan that it served still exists.
        eventually(is_unknown)
        with pytest.raises(UnknownJob):
            client.fetch_plan("job", 2, MODEL, wait_s=1)
        clock.restart()
        assert client.register_job("job", MODEL, CLUSTER, PARAMS) > before.id.epoch
        assert client.fetch_plan("job", 1, MODEL) is None
        eventually(lambda: redis.exists(SCHEMA) and "Redis lost everything" in planner.log())
        after = take_step(planner, 1)
        clock.stop()
        assert after.id > before.id
        assert after.digest == before.digest


@pytest.mark.long
def test_L3_redis_comes_back_with_a_policy_that_evicts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if not isinstance(world.redis, OneServer):
        pytest.skip("only the embedded Redis is started with other options")
    planner = world.start_planner()
    take_step(planner, 1)
    options = EmbeddedRedis._options
    with (
        world.fault("Redis gets SIGKILL, starts with maxmemory-policy allkeys-lru", "L3 L2 S9") as clock,
        RolloutReporter(planner.address, "job", num_experts=MODEL.num_experts) as reporter,
    ):
        world.redis.kill()
        with monkeypatch.context() as patch:
            patch.setattr(
                EmbeddedRedis,
                "_options",
                lambda server: [word.replace("noeviction", "allkeys-lru") for word in options(server)],
            )
            world.redis.recover()
        reporter.report(2, "seq", routed_experts(0, 5))
        eventually(lambda: "evicts keys" in str(reporter.trouble))
        eventually(lambda: "nothing is acknowledged: this Redis evicts keys" in planner.log())
        eventually(lambda: not is_serving(planner))
        with world.redis.client() as redis:
            assert not redis.keys("relibra:{job}:*:step:2:counts")
            redis.config_set("maxmemory-policy", "noeviction")
        clock.restart()
        assert reporter.flush(timeout_s=PATIENT_S) == 1
        eventually(lambda: is_serving(planner))  # health looks at Redis only now and then
        clock.stop()
        assert planner.log().count("not ready, and nothing is acknowledged") == 1
