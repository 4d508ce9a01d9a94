"""Redis URLs and the clients that they open."""

from pathlib import Path

import pytest
from redis.asyncio import RedisCluster, SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

from harness.certificates import Authority
from harness.services import Loop
from harness.tls_redis import TlsRedis
from relibra.errors import InvalidInput, Unavailable
from relibra.store import Store
from relibra.store.address import MAX_CONNECTIONS, open_redis, with_password_of, without_password


def test_one_server() -> None:
    pool = open_redis("rediss://user:p%40ss@host:1234/0?ssl_ca_certs=/ca.pem").connection_pool
    assert pool.connection_class is SSLConnection
    assert pool.max_connections == MAX_CONNECTIONS
    expected = {"host": "host", "port": 1234, "username": "user", "password": "p@ss", "ssl_ca_certs": "/ca.pem"}
    assert expected.items() <= pool.connection_kwargs.items()


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:1/0",
        "rediss://user@host?ssl_ca_certs=/ca.pem",
        "unix:///run/redis.sock",
        "redis+cluster://one:1,two:2",
        "redis+sentinel://user@one,[::1]:2/primary",
    ],
)
def test_a_password_from_a_file_opens_every_kind_of_redis(url: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss:w#rd? %41 'é\" $HOME/\n")
    client = open_redis(with_password_of(file, url))
    options = (
        client.get_connection_kwargs() if isinstance(client, RedisCluster) else client.connection_pool.connection_kwargs
    )
    assert options["password"] == "p@ss:w#rd? %41 'é\" $HOME/"
    assert (options.get("username") or None) == ("user" if "user@" in url else None)


def test_a_password_that_is_missing_or_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    with pytest.raises(InvalidInput, match="redis_password_file: expected a file with a password"):
        with_password_of(file, "redis://host")
    file.write_text("\n")
    with pytest.raises(InvalidInput, match="which is empty"):
        with_password_of(file, "redis://host")
    file.write_text("word\n")
    with pytest.raises(InvalidInput, match=r"the URL redis://user:\*\*\*@host have a password: give one"):
        with_password_of(file, "redis://user:hush@host")


def test_a_cluster_of_several_nodes() -> None:
    client = open_redis("rediss+cluster://user:word@one:1,two:2,three?ssl_ca_certs=/ca.pem")
    assert isinstance(client, RedisCluster)
    nodes = client.nodes_manager.startup_nodes.values()
    assert [(node.host, node.port) for node in nodes] == [("one", 1), ("two", 2), ("three", 6379)]
    kwargs = client.get_connection_kwargs()
    assert (kwargs["username"], kwargs["password"], kwargs["ssl_ca_certs"]) == ("user", "word", "/ca.pem")


def test_a_primary_by_its_sentinels() -> None:
    pool = open_redis("rediss+sentinel://user:word@one,[::1]:2/primary?ssl_ca_certs=/ca.pem").connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    assert pool.connection_class is SentinelManagedSSLConnection
    assert (pool.service_name, pool.max_connections) == ("primary", MAX_CONNECTIONS)
    asked = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("one", 26379), ("::1", 2)]
    assert all(each["ssl_ca_certs"] == "/ca.pem" and each.get("password") is None for each in asked)
    assert pool.connection_kwargs["password"] == "word"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hush@host",
        "redis+magic://user:hush@host",
        "redis+cluster://user:hush@",
        "redis://user:hush@[::1",
        "http://host?password=hush",
        "redis+sentinel://user:hush@host:1",
        "redis+cluster://user:hush@host:port",
        "unix+cluster://user:hush@host",
    ],
)
def test_other_urls_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"redis url: expected redis://") as caught:
        open_redis(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "printed"),
    [
        ("redis://host:1/0?db=2", "redis://host:1/0?db=2"),
        ("redis+sentinel://user:hush@one:1,two:2/primary", "redis+sentinel://user:***@one:1,two:2/primary"),
        ("redis://hush@host", "redis://***@host"),
        ("redis://:hush#hush/hush?hush@host", "redis://:***@host"),
        ("redis://user:hush@[::1", "redis://user:***@[::1"),
        ("redis://host/0?password=hush&db=2", "redis://host/0?password=***&db=2"),
        ("rediss://host?ssl_ca_certs=/ca&ssl_password=hush", "rediss://host?ssl_ca_certs=/ca&ssl_password=***"),
        ("unix:///run/redis.sock?pass%77ord=hush", "unix:///run/redis.sock?pass%77ord=***"),
    ],
)
def test_S6_a_url_is_printed_without_what_is_secret(url: str, printed: str) -> None:
    assert without_password(url) == printed


def test_S6_redis_over_tls_with_a_user(tls_redis: TlsRedis, run: Loop, tmp_path: Path) -> None:
    port, authority = tls_redis.port, tls_redis.authority

    def check(url: str) -> None:
        store = Store.open(url)
        try:
            run(store.check())
        finally:
            run(store.close())

    check(tls_redis.url)
    stranger = Authority(tmp_path, "stranger")
    for url in (
        f"rediss://relibra:open@127.0.0.1:{port}?ssl_ca_certs={stranger.file}",
        f"rediss://relibra:hush@127.0.0.1:{port}?ssl_ca_certs={authority.file}",
        f"redis://relibra:open@127.0.0.1:{port}",
    ):
        with pytest.raises(Unavailable) as caught:
            check(url)
        assert "hush" not in str(caught.value)
