"""Redis URLs, and the client for each: of one server, of a Cluster, or of the primary that Sentinels name.

| URL | server |
|---|---|
| `redis://[user:password@]host[:port]`, `unix://[user:password@]/path` | one server |
| `redis+cluster://[user:password@]host[:port][,host[:port]...]` | a Cluster; the hosts are any of its servers |
| `redis+sentinel://[user:password@]host[:port][,host[:port]...]/name` | the primary that these Sentinels call `name` |

With `rediss` in place of `redis`, all connections use TLS. The query may set TLS options, for example
`?ssl_ca_certs=/path`; without options, certificates are checked. Sentinels are asked without a password.
"""

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialBackoff

from relibra.errors import InvalidInput
from relibra.store.bounded_cluster import BoundedCluster
from relibra.store.connection_guard import ConnectionGuard

RedisClient = Redis | RedisCluster

MAX_CONNECTIONS = 32
"""Connections of a process to one Redis server; a call waits if all are in use. Redis runs one command at a time."""
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0

_PORT = 6379
_SENTINEL_PORT = 26379
# Up to the last @, because a password may contain any character. A word without a colon may be the password itself.
_USER_INFO = re.compile(r"//(?P<user>[^:/?#@]*:)?.*@", re.DOTALL)
_PARAMETER = re.compile(r"(?P<name>[?&][^=&]*)=[^&]*")
_EXPECTED = "redis://, rediss:// or unix://; +cluster or +sentinel may follow redis or rediss"


def open_redis(url: str, guard: ConnectionGuard | None = None) -> RedisClient:
    """Return a client for `url`, whose connections `guard` checks; connecting happens with the first command.

    Raises:
        InvalidInput: it is not a Redis URL.
    """
    guard = guard or ConnectionGuard()
    try:
        parts = urlsplit(url)
        scheme, _, kind = parts.scheme.partition("+")
        match scheme, kind:
            case _, "":
                return _open_server(url, guard)
            case "redis" | "rediss", "cluster":
                return _open_cluster(parts._replace(scheme=scheme), guard)
            case "redis" | "rediss", "sentinel":
                return _open_sentinel(parts._replace(scheme=scheme), guard)
        raise ValueError(f"no scheme {parts.scheme}")
    except ValueError as error:
        raise InvalidInput.of("redis url", expected=_EXPECTED, got=repr(without_password(url))) from error


def without_password(url: str) -> str:
    """Return `url` with passwords masked, valid or not, so that it may be printed."""
    without_user_info = _USER_INFO.sub(lambda match: f"//{match['user'] or ''}***@", url)
    return _PARAMETER.sub(
        lambda match: f"{match['name']}=***" if "password" in unquote(match["name"]).lower() else match[0],
        without_user_info,
    )


def with_password_of(file: Path, url: str) -> str:
    """Return `url` with the password in `file`, which may have any characters; the end of its line does not count.

    Raises:
        InvalidInput: the file cannot be read or is empty, or the URL has a password already.
    """
    try:
        password = file.read_text().rstrip("\n")
    except (OSError, ValueError) as error:
        raise InvalidInput.of("redis_password_file", expected="a file with a password", got=error) from error
    if not password:
        raise InvalidInput.of("redis_password_file", expected="a file with a password", got=f"{file}, which is empty")
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    if ":" in user:
        raise InvalidInput(f"both redis_password_file and the URL {without_password(url)} have a password: give one")
    # Put together by hand, because `urlunsplit` drops the slashes of a scheme that it does not know.
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{user}:{quote(password, safe='')}@{hosts}{parts.path}{query}"


def _open_server(url: str, guard: ConnectionGuard) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=ANSWER_TIMEOUT_S,
        redis_connect_func=guard.on_connect,
        **_socket_options(),
    )
    return Redis.from_pool(pool)


def _open_cluster(parts: SplitResult, guard: ConnectionGuard) -> RedisCluster:
    nodes = [ClusterNode(host, port) for host, port in _hosts(parts, _PORT)]
    options = _account(parts) | _socket_options()
    return BoundedCluster(startup_nodes=nodes, num_at_once=MAX_CONNECTIONS, guard=guard, **options)


def _open_sentinel(parts: SplitResult, guard: ConnectionGuard) -> Redis:
    name = parts.path.strip("/")
    if not name:
        raise ValueError("no name of a primary")
    account = _account(parts._replace(path=""))
    tls = {key: value for key, value in account.items() if key.startswith("ssl")}
    # Each new connection to the primary asks the Sentinels first, over one shared connection to each.
    asking = tls | {"single_connection_client": True} | _socket_options()
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        _hosts(parts, _SENTINEL_PORT), sentinel_kwargs=asking, **account, **_socket_options()
    )
    redis: Redis = sentinels.master_for(
        name,
        redis_class=_PrimaryClient,
        connection_pool_class=_PrimaryPool,
        max_connections=MAX_CONNECTIONS,
        timeout=ANSWER_TIMEOUT_S,
        redis_connect_func=guard.on_connect,
    )
    return redis


class _PrimaryClient(Redis):
    """A client of the primary, which has the Sentinels to itself."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections, also those to the Sentinels, which redis-py leaves to its caller."""
        await super().aclose(close_connection_pool)
        pool = self.connection_pool
        assert isinstance(pool, SentinelConnectionPool)
        await asyncio.gather(*(sentinel.aclose() for sentinel in pool.sentinel_manager.sentinels))


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """A bounded pool of connections to the primary."""


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    """Return the comma-separated addresses of a URL."""
    hosts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    if not all(host.hostname for host in hosts):
        raise ValueError("an address without a host")
    return [(host.hostname or "", host.port or default_port) for host in hosts]


def _account(parts: SplitResult) -> dict[str, Any]:
    """Return user, password and TLS options of a URL, without its hosts."""
    user, at, _ = parts.netloc.rpartition("@")
    options: dict[str, Any] = dict(parse_url(urlunsplit(parts._replace(netloc=f"{user}{at}host"))))
    del options["host"]
    if issubclass(options.pop("connection_class", object), SSLConnection):
        options["ssl"] = True
    return options


def _socket_options() -> dict[str, Any]:
    return {
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": ANSWER_TIMEOUT_S,
        # Every write of the store is idempotent, so a command that failed half-way may be repeated.
        "retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=2),
    }
