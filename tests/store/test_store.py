"""The demands on a Redis that keeps the state of jobs."""

from pathlib import Path

import pytest
from redis import Redis, ResponseError

from harness.services import Loop
from relibra.errors import Unavailable, Unsupported
from relibra.store import EmbeddedRedis, Store
from relibra.store.keys import SCHEMA, SCHEMA_VERSION


def test_an_empty_redis_is_marked_and_accepted_again(store: Store, run: Loop, redis_url: str) -> None:
    run(store.check())
    run(store.check())
    with Redis.from_url(redis_url) as client:
        assert client.get(SCHEMA) == str(SCHEMA_VERSION).encode()


@pytest.mark.parametrize(
    ("version", "advice"),
    [
        (SCHEMA_VERSION + 1, "upgrade relibra"),
        (2, f"holds schema version 2, this relibra reads and writes {SCHEMA_VERSION}; start on an empty Redis"),
    ],
)
def test_another_schema_is_refused(store: Store, run: Loop, redis_url: str, version: int, advice: str) -> None:
    with Redis.from_url(redis_url) as client:
        client.set(SCHEMA, version)
    with pytest.raises(Unsupported, match=advice):
        run(store.check())
    with pytest.raises(Unsupported, match=advice):
        run(store.check_schema())


def test_S3_what_else_redis_hides_does_not_hide_that_it_evicts(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def config_get(name: str) -> dict[str, str]:
        if name != "maxmemory-policy":
            raise ResponseError("unknown parameter")
        return {name: "allkeys-lru"}

    monkeypatch.setattr(store._redis, "config_get", config_get)
    with pytest.raises(Unsupported, match="evicts keys"):
        run(store.check())


def test_a_reader_does_not_mark_an_empty_redis(store: Store, run: Loop, redis_url: str) -> None:
    run(store.check_schema())
    with Redis.from_url(redis_url) as client:
        assert client.get(SCHEMA) is None


def test_S3_a_redis_that_evicts_is_refused(run: Loop, tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server, Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        store = Store.open(server.url)
        with pytest.raises(Unsupported, match=r"evicts keys, .* allkeys-lru"):
            run(store.check())
        run(store.close())


def test_redis_out_of_reach_is_unavailable(run: Loop, tmp_path: Path) -> None:
    store = Store.open(f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(Unavailable, match=r"nobody\.sock"):
        run(store.ping())


def test_passwords_and_users_of_redis_are_checked_and_never_shown(run: Loop, tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as server, Redis.from_url(server.url) as admin:
        admin.acl_setuser("relibra", enabled=True, passwords=["+open"], keys=["relibra:*"], commands=["+@all"])
        admin.acl_setuser("default", enabled=False)

        def check(user: str) -> None:
            store = Store.open(f"unix://{user}@{server.socket_path}")
            try:
                run(store.check())
            finally:
                run(store.close())

        check("relibra:open")
        with pytest.raises(Unavailable, match="invalid username-password pair") as caught:
            check("relibra:hush")
        assert "hush" not in str(caught.value)
