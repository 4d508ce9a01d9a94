"""A Redis that is exchanged, reconfigured or emptied under a live store."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually
from relibra.errors import Unavailable, Unsupported
from relibra.store import EmbeddedRedis, Store
from relibra.store.keys import SCHEMA, SCHEMA_VERSION


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path) as server:
        yield server
        with Redis.from_url(server.url) as client:  # Redis refuses to end while it begins a file anew
            eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"])


@pytest.fixture
def checked(server: EmbeddedRedis, run: Loop) -> Iterator[Store]:
    """A store that found its Redis fit, and has a job in it."""
    store = Store.open(server.url)
    run(store.check())
    run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    yield store
    run(store.close())


@pytest.mark.parametrize(
    ("option", "unfit", "told"),
    [
        ("maxmemory-policy", "allkeys-lru", r"evicts keys, .* \(maxmemory-policy allkeys-lru\)"),
        ("appendonly", "no", r"may lose what it acknowledged \(appendonly no\)"),
    ],
)
def test_L3_nothing_is_written_to_a_redis_that_was_started_again_with_other_settings(
    checked: Store,
    server: EmbeddedRedis,
    run: Loop,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    unfit: str,
    told: str,
) -> None:
    options = server._options()
    place = options.index(f"--{option}") + 1
    fit, options[place] = options[place], unfit
    monkeypatch.setattr(server, "_options", lambda: options)
    server.stop()
    server.start()
    with pytest.raises(Unavailable, match=told):
        run(checked.register_job("other", MODEL, CLUSTER, PARAMS))
    with Redis.from_url(server.url) as client:
        assert not client.exists("relibra:{other}:job")
        client.config_set(option, fit)
        run(checked.check_settings())
        # Without its file Redis came back empty.
        assert run(checked.check_again()) == (option == "appendonly")
        run(checked.register_job("other", MODEL, CLUSTER, PARAMS))
        assert client.exists("relibra:{other}:job")


def test_L3_a_redis_that_was_never_durable_is_used_until_it_is_durable_and_then_no_more_without(
    server: EmbeddedRedis, run: Loop
) -> None:
    with Redis.from_url(server.url) as client:
        client.config_set("appendfsync", "everysec")
        store = Store.open(server.url)
        run(store.check())
        assert "appendfsync everysec" in run(store.check_settings())
        run(store.register_job("job", MODEL, CLUSTER, PARAMS))
        client.config_set("appendfsync", "always")
        assert not run(store.check_settings())
        client.config_set("appendfsync", "everysec")
        with pytest.raises(Unsupported, match="appendfsync everysec"):
            run(store.check_settings())
        run(store.close())


def test_L3_a_restored_backup_is_told_of_by_every_store_that_looked_since(server: EmbeddedRedis, run: Loop) -> None:
    stores = [Store.open(server.url) for _ in range(2)]
    backup = server.data_dir.with_name("backup")

    def looks() -> list[bool]:
        return [run(store.has_gone_back()) for store in stores]

    for store in stores:
        run(store.check())
    assert looks() == [False, False]
    server.stop()
    shutil.copytree(server.data_dir, backup)
    server.start()
    assert looks() == looks() == [False, False]
    server.stop()
    shutil.rmtree(server.data_dir)
    shutil.copytree(backup, server.data_dir)
    server.start()
    assert looks() == [True, True]
    assert looks() == [False, False]
    for store in stores:
        run(store.close())


def test_L3_a_loss_of_everything_is_told_of_once_by_one_of_several_stores(server: EmbeddedRedis, run: Loop) -> None:
    stores = [Store.open(server.url) for _ in range(2)]
    for store in stores:
        run(store.check())
        run(store.has_gone_back())
    with Redis.from_url(server.url) as client:
        client.flushall()
    # Some looks come before anybody has marked Redis again.
    assert [run(store.has_gone_back()) for store in stores] == [False, False]
    assert [run(store.check_again()) for store in stores] == [True, False]
    assert [run(store.has_gone_back()) for store in stores] == [False, False]
    for store in stores:
        run(store.close())


def test_L3_a_redis_that_came_back_with_its_file_has_not_gone_back(
    checked: Store, server: EmbeddedRedis, run: Loop
) -> None:
    for _ in range(3):
        assert not run(checked.has_gone_back())
        server.stop()
        server.start()
    with Redis.from_url(server.url) as client:
        client.flushall()
    assert run(checked.check_again())
    assert not run(checked.has_gone_back()), "a loss of everything is told of once"


def test_L3_nothing_is_written_to_a_redis_that_came_back_with_another_schema(
    checked: Store, server: EmbeddedRedis, run: Loop
) -> None:
    with Redis.from_url(server.url) as client:
        client.set(SCHEMA, SCHEMA_VERSION + 1)
        server.stop()
        server.start()
        with pytest.raises(Unavailable, match=f"holds schema version {SCHEMA_VERSION + 1}, .*; upgrade relibra"):
            run(checked.register_job("other", MODEL, CLUSTER, PARAMS))
        assert not client.exists("relibra:{other}:job")


@pytest.mark.parametrize("fault", ["policy", "sync", "file", "schema"])
def test_L3_a_redis_that_turns_unfit_without_a_break_is_noticed_and_refused(
    checked: Store, server: EmbeddedRedis, run: Loop, fault: str
) -> None:
    with Redis.from_url(server.url) as client:

        def turn(is_fit: bool) -> None:
            if fault == "policy":
                client.config_set("maxmemory-policy", "noeviction" if is_fit else "volatile-ttl")
            elif fault == "sync":
                client.config_set("appendfsync", "always" if is_fit else "everysec")
            elif fault == "file":
                client.config_set("appendonly", "yes" if is_fit else "no")
            else:
                client.set(SCHEMA, SCHEMA_VERSION if is_fit else SCHEMA_VERSION - 1)

        async def look() -> bool:
            with contextlib.suppress(Unsupported):
                await checked.check_settings()
            return await checked.check_again()

        turn(is_fit=False)
        told = {
            "policy": "volatile-ttl",
            "sync": r"\(appendfsync everysec\); set appendonly to yes and appendfsync to always",
            "file": r"may lose what it acknowledged \(appendonly no\)",
            "schema": "start on an empty Redis",
        }
        with pytest.raises(Unsupported, match=told[fault]):
            run(look())
        with pytest.raises(Unavailable, match="nothing is acknowledged: this Redis"):
            run(checked.register_job("job", MODEL, CLUSTER, PARAMS))
        turn(is_fit=True)
        assert not run(look())
        run(checked.register_job("job", MODEL, CLUSTER, PARAMS))


def test_L3_a_redis_that_was_emptied_is_told_of_once_and_marked_again(
    checked: Store, server: EmbeddedRedis, run: Loop
) -> None:
    with Redis.from_url(server.url) as client:
        client.flushall()
        assert run(checked.check_again())
        assert not run(checked.check_again())
        assert client.get(SCHEMA) == str(SCHEMA_VERSION).encode()


def test_L3_a_redis_that_was_emptied_is_told_of_though_a_job_came_first(
    checked: Store, server: EmbeddedRedis, run: Loop
) -> None:
    with Redis.from_url(server.url) as client:
        client.flushall()
        run(checked.register_job("job", MODEL, CLUSTER, PARAMS))
        run(checked.check_schema())
        assert run(checked.check_again())
        assert not run(checked.check_again())


def test_a_redis_that_hides_its_configuration_is_not_asked_again_and_again(server: EmbeddedRedis, run: Loop) -> None:
    with Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-config")
        store = Store.open(server.url)
        run(store.check())
        told = client.acl_log()
        assert told
        for _ in range(3):
            assert not run(store.check_again())
        assert [each["count"] for each in client.acl_log()] == [each["count"] for each in told]
        run(store.close())


def test_a_user_that_loses_the_right_to_ask_for_the_configuration_may_go_on(
    checked: Store, server: EmbeddedRedis, run: Loop
) -> None:
    with Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "default", "-config")
        run(checked.check_settings())
        assert not run(checked.check_again())
        assert not checked.fault


def test_L2_a_replica_that_evicts_is_no_fault_of_the_servers_that_are_written_to(
    server: EmbeddedRedis, run: Loop
) -> None:
    with Redis.from_url(server.url) as client:
        store = Store.open(server.url)
        run(store.check())
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        run(store._redis.connection_pool.disconnect())
        run(store.ping())
        assert not store.fault
        client.execute_command("REPLICAOF", "NO", "ONE")
        run(store._redis.connection_pool.disconnect())
        with pytest.raises(Unavailable, match="evicts keys"):
            run(store.ping())
        assert store.fault
        run(store.close())
