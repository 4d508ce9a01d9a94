"""What every connection to Redis is asked before a command of the store travels over it.

A Redis that was checked when a service started may be started again with another configuration or another file, or a
failover may put another server in its place. All of these renew the connections, so each new connection is checked
before it is used: nothing is acknowledged from a Redis that may lose it.
"""

from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from relibra.store.keys import SCHEMA, SCHEMA_VERSION

POLICY = "maxmemory-policy"
NO_EVICTION = "noeviction"


class UnfitRedis(RedisConnectionError):
    """The Redis at the other end of a new connection may not keep the state of jobs."""


class ConnectionGuard:
    """Checks new connections of one client, from when the Redis was first found fit."""

    def __init__(self) -> None:
        self.checks_schema = False
        self.checks_policy = False
        self.fault = ""
        """Why this Redis may not keep the state of jobs; empty while it may, as far as is known."""
        self.hides_configuration = False
        """Whether Redis does not tell how it is configured, as some managed ones do not."""

    async def on_connect(self, connection: Any) -> None:
        """Greet Redis over a new connection, and check it.

        Raises:
            UnfitRedis: it holds another schema version, or may evict keys.
        """
        await connection.on_connect()
        fault = ""
        if self.checks_policy:
            fault = evicts(await self._policy(connection))
        if self.checks_schema and not fault:
            fault = other_schema(await _ask(connection, "GET", SCHEMA))
        if fault:
            self.fault = fault
            raise UnfitRedis(fault)

    async def _policy(self, connection: Any) -> bytes | None:
        answer = await _ask(connection, "CONFIG", "GET", POLICY)
        self.hides_configuration = answer is None
        values = list(answer.values() if isinstance(answer, dict) else (answer or [])[1::2])
        return values[0] if values else None


def evicts(policy: bytes | str | None) -> str:
    """Return why a Redis with this `maxmemory-policy` may not keep the state of jobs, or nothing if it may."""
    name = policy.decode() if isinstance(policy, bytes) else policy
    if name in (None, NO_EVICTION):
        return ""
    return f"this Redis evicts keys, plans among them, when it is full ({POLICY} {name}); set {POLICY} to {NO_EVICTION}"


def other_schema(found: bytes | None) -> str:
    """Return why this relibra may not use a Redis with this schema version, or nothing if it may; None if empty."""
    version = SCHEMA_VERSION if found is None else int(found)
    if version == SCHEMA_VERSION:
        return ""
    advice = "upgrade relibra" if version > SCHEMA_VERSION else "start on an empty Redis"
    return f"this Redis holds schema version {version}, this relibra reads and writes {SCHEMA_VERSION}; {advice}"


async def _ask(connection: Any, *command: str) -> Any:
    """Return the answer of Redis; None if it refuses, for example because another server of the Cluster has the key."""
    await connection.send_command(*command)
    try:
        return await connection.read_response()
    except ResponseError:
        return None
