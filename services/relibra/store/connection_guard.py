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
        self.is_emptied = False
        """Whether this store marked a Redis again that it had found fit; true until somebody is told."""
        self.schema_fault = ""
        """Why this relibra may not use the schema that Redis holds; empty while it may, as far as is known."""
        self.policy_fault = ""
        """Why a server of this Redis may lose what was written to it; empty while none may, as far as is known."""

    @property
    def fault(self) -> str:
        """Why this Redis may not keep the state of jobs; empty while it may, as far as is known."""
        return self.policy_fault or self.schema_fault

    async def on_connect(self, connection: Any) -> None:
        """Greet Redis over a new connection, and check it.

        Raises:
            UnfitRedis: it holds another schema version, or may evict keys.
        """
        await connection.on_connect()
        if self.checks_policy and (fault := evicts(await _policy(connection))) and not await _is_replica(connection):
            self.policy_fault = fault
            raise UnfitRedis(fault)
        if self.checks_schema and (fault := other_schema(await _ask(connection, "GET", SCHEMA))):
            self.schema_fault = fault
            raise UnfitRedis(fault)


def evicts(policy: bytes | str | None) -> str:
    """Return why a Redis with this `maxmemory-policy` may not keep the state of jobs, or nothing if it may."""
    name = policy.decode() if isinstance(policy, bytes) else policy
    if name in (None, NO_EVICTION):
        return ""
    return f"this Redis evicts keys, plans among them, when it is full ({POLICY} {name}); set {POLICY} to {NO_EVICTION}"


def other_schema(stored: bytes | None) -> str:
    """Return why this relibra may not use a Redis with this schema version, or nothing if it may; None if empty."""
    version = SCHEMA_VERSION if stored is None else int(stored)
    if version == SCHEMA_VERSION:
        return ""
    advice = "upgrade relibra" if version > SCHEMA_VERSION else "start on an empty Redis"
    return f"this Redis holds schema version {version}, this relibra reads and writes {SCHEMA_VERSION}; {advice}"


async def _policy(connection: Any) -> bytes | None:
    answer = await _ask(connection, "CONFIG", "GET", POLICY)
    values = list(answer.values() if isinstance(answer, dict) else (answer or [])[1::2])
    return values[0] if values else None


async def _is_replica(connection: Any) -> bool:
    """Return whether the server is a replica: it is asked which servers a Cluster has, and nothing is written to it."""
    role = await _ask(connection, "ROLE")
    return bool(role) and role[0] in (b"slave", "slave")


async def _ask(connection: Any, *command: str) -> Any:
    """Return the answer of Redis; None if it refuses, for example because another server of the Cluster has the key."""
    await connection.send_command(*command)
    try:
        return await connection.read_response()
    except ResponseError:
        return None
