"""Readiness against a real Redis that serves, refuses or hangs."""

import asyncio
import threading
import time
import urllib.error
import urllib.request

import pytest
from grpc_health.v1 import health_pb2
from redis import Redis, RedisError

from harness.services import Loop, eventually
from relibra.errors import Unavailable
from relibra.planner.metrics import Metrics
from relibra.planner.serve import health as health_module
from relibra.planner.serve.health import Health
from relibra.store import Store
from relibra.store import store as store_module
from relibra.wire.status import WaitsFor

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
PATIENT_S = 120.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about what Redis answers, and not about how soon a busy machine hears it."""
    monkeypatch.setattr(health_module, "_ANSWER_TIMEOUT_S", PATIENT_S)


async def status(health: Health) -> int:
    answer = await health._servicer.Check(health_pb2.HealthCheckRequest(), _Context())
    return int(answer.status)


class _Context:
    async def send_initial_metadata(self, metadata: object) -> None:
        """Drop the metadata; these tests do not read it."""


def test_L2_a_user_of_redis_who_may_not_read_for_a_while_makes_it_not_ready_for_as_long(
    store: Store, run: Loop, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(redis: Redis) -> None:
        health = Health(store, Metrics(), ["service"])
        following = asyncio.create_task(health.follow_redis())

        async def until(expected: int) -> None:
            async with asyncio.timeout(PATIENT_S):
                while not following.done() and (health._is_ready is None or await status(health) != expected):
                    await store._redis.echo("the loop runs meanwhile")
            assert not following.done()

        await until(SERVING)
        redis.execute_command("ACL", "SETUSER", "default", "-get")
        await until(NOT_SERVING)
        redis.execute_command("ACL", "SETUSER", "default", "+get")
        await until(SERVING)
        following.cancel()

    with Redis.from_url(redis_url) as redis:
        try:
            run(scenario(redis))
        finally:
            redis.execute_command("ACL", "SETUSER", "default", "+@all")
    assert "not ready: Redis cannot be used: NoPermissionError" in caplog.text


def test_L2_a_redis_that_runs_a_script_is_not_ready_and_answers_unavailable(
    store: Store, run: Loop, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def run_long() -> None:
        with Redis.from_url(redis_url) as redis, pytest.raises(RedisError, match="killed"):
            redis.eval("while true do end", 0)

    health, script = Health(store, Metrics(), []), threading.Thread(target=run_long)
    with Redis.from_url(redis_url) as redis:
        redis.config_set("lua-time-limit", 10)
        script.start()
        try:

            def is_busy() -> bool:
                try:
                    redis.ping()
                except RedisError as error:
                    return "BUSY" in str(error)
                return False

            eventually(is_busy)
            run(health.look())
        finally:
            redis.script_kill()
            script.join()
            redis.config_set("lua-time-limit", 5000)
    assert "not ready: Redis does not serve: BUSY" in caplog.text
    run(health.look())
    assert health._is_ready


def test_L3_a_redis_that_evicts_is_not_ready_and_says_so_once_everywhere(
    store: Store, run: Loop, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    health, port = Health(store, metrics, []), metrics.serve("127.0.0.1", 0)

    def shown(path: str) -> str:
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENT_S).read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    run(store.check())
    run(health.look())
    with Redis.from_url(redis_url) as redis:
        redis.config_set("maxmemory-policy", "allkeys-lru")
        try:
            run(health.look_at_settings())
            for _ in range(3):
                run(health.look())
            assert run(status(health)) == NOT_SERVING
            assert "not ready: this Redis evicts keys" in shown("readyz")
            assert "relibra_planner_redis_unfit 1.0" in shown("metrics")
        finally:
            redis.config_set("maxmemory-policy", "noeviction")
        run(health.look_at_settings())
        run(health.look())
        assert run(status(health)) == SERVING
        assert shown("readyz") == "ready\n"
        assert "relibra_planner_redis_unfit 0.0" in shown("metrics")
        redis.flushall()
        run(health.look())
        run(health.look())
    assert 'relibra_planner_redis_losses_total{lost="everything"} 1.0' in shown("metrics")
    said = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert [each.partition(":")[0] for each in said] == [
        "not ready, and nothing is acknowledged",
        "Redis lost everything",
    ]


def test_L3_a_redis_that_was_never_durable_is_told_of_once_and_one_that_no_longer_is_makes_not_ready(
    store: Store, run: Loop, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    health = Health(store, metrics, [])

    def look() -> tuple[bool, float]:
        run(health.look_at_settings())
        run(health.look())
        return run(status(health)) == SERVING, metrics.redis_forgets._value.get()

    with Redis.from_url(redis_url) as redis:
        try:
            redis.config_set("appendfsync", "everysec")
            run(store.check())
            assert look() == look() == (True, 1)
            redis.config_set("appendfsync", "always")
            assert look() == (True, 0)
            redis.config_set("appendonly", "no")
            assert look() == (False, 0)
        finally:
            redis.config_set("appendonly", "yes")
            redis.config_set("appendfsync", "always")
        assert look() == (True, 0)
        redis.decrby("relibra:looks", 5)
        assert look() == look() == (True, 0)
        loss = run(store.last_loss())
    assert loss is not None
    assert loss[0] == "its newest writes"
    said = [each.getMessage() for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    assert [each.partition(" (")[0].partition(":")[0] for each in said] == [
        "this Redis may lose what it acknowledged",
        "not ready, and nothing is acknowledged",
        "Redis lost its newest writes",
    ]


def test_L3_metrics_tell_how_full_redis_is_and_whether_clocks_agree(
    store: Store, run: Loop, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    health = Health(store, metrics, [])

    def look() -> tuple[float, float]:
        run(health.look_at_settings())
        return metrics.redis_memory_share._value.get(), metrics.clock_offset_s._value.get()

    with Redis.from_url(redis_url) as redis:
        redis.config_set("maxmemory", 2 * redis.info("memory")["used_memory"])
        share, offset_s = look()
        redis.config_set("maxmemory", 0)
    assert 0.4 < share < 0.9
    assert abs(offset_s) < 60
    now = time.time()
    monkeypatch.setattr(store_module.time, "time", lambda: now + 3600)
    share, offset_s = look()
    assert share < 0.4
    assert 3540 < offset_s < 3660
    assert metrics.redis_rewrite_fails._value.get() == 0


def test_S9_a_redis_whose_list_of_jobs_is_damaged_is_not_ready(store: Store, run: Loop, redis_url: str) -> None:
    metrics = Metrics()
    health = Health(store, metrics, [])
    run(health.look())
    assert metrics.probe("/readyz") == (True, "ready")
    with Redis.from_url(redis_url) as redis:
        redis.set("relibra:jobs", "oops")
        run(health.look())
        assert run(status(health)) == NOT_SERVING
        is_ready, line = metrics.probe("/readyz") or (True, "")
        assert not is_ready
        assert line.startswith("not ready: Redis cannot be used: Corrupt: key relibra:jobs in Redis is no set: ")
        redis.delete("relibra:jobs")
    run(health.look())
    assert metrics.probe("/readyz") == (True, "ready")


def test_a_planner_whose_solver_warms_up_is_not_ready_until_it_is_warm(store: Store, run: Loop) -> None:
    obstacle, metrics = "the solver warms up", Metrics()
    health = Health(store, metrics, [], lambda: obstacle)
    run(health.look())
    assert run(status(health)) == NOT_SERVING
    assert health._servicer.waits_for is WaitsFor.SOLVER
    assert metrics.probe("/readyz") == (False, "not ready: the solver warms up")
    obstacle = ""
    run(health.look())
    assert run(status(health)) == SERVING
    assert health._servicer.waits_for is None


def test_L2_a_server_that_does_not_tell_its_configuration_keeps_no_planner_from_being_ready(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        health = Health(store, Metrics(), [])
        await store.check()

        async def never(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(store._redis, "config_get", never)
        following = asyncio.create_task(health.follow_redis())
        async with asyncio.timeout(PATIENT_S):
            while health._is_ready is None:
                await store._redis.echo("the loop runs meanwhile")
        assert health._is_ready
        following.cancel()

    run(scenario())


def test_L3_a_loss_that_redis_did_not_note_at_once_is_noted_later(
    store: Store, run: Loop, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store.check())
    health, note_loss, refusals = Health(store, Metrics(), []), store.note_loss, [Unavailable("Redis loads its file")]

    async def note(lost: str) -> None:
        if refusals:
            raise refusals.pop()
        await note_loss(lost)

    monkeypatch.setattr(store, "note_loss", note)
    run(health.look_at_settings())
    with Redis.from_url(redis_url) as redis:
        redis.decrby("relibra:looks", 5)
    run(health.look_at_settings())
    assert not refusals
    assert run(store.last_loss()) is None
    run(health.look_at_settings())
    loss = run(store.last_loss())
    assert loss is not None
    assert loss[0] == "its newest writes"
