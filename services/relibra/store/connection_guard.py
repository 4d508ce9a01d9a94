"""What every connection to Redis is asked before a command of the store travels over it.

A Redis that was checked when a service started may be started again with another configuration or another file, or a
failover may put another server in its place. All of these renew the connections, so each new connection is checked
before it is used: nothing is acknowledged from a Redis that may lose it.
"""

from collections.abc import Mapping
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from relibra.store.keys import SCHEMA, SCHEMA_VERSION

POLICY = "maxmemory-policy"
NO_EVICTION = "noeviction"
_DURABLE = {"appendonly": "yes", "appendfsync": "always"}
NEEDED = {POLICY: NO_EVICTION} | _DURABLE
"""The settings with which Redis keeps what it acknowledged."""


class UnfitRedis(RedisConnectionError):
    """The Redis at the other end of a new connection may not keep the state of jobs."""


class ConnectionGuard:
    """Checks new connections of one client, from when the Redis was first found fit."""

    def __init__(self) -> None:
        self.checks_schema = False
        self.checks_settings = False
        self.is_emptied = False
        """Whether this store marked a Redis again that it had found fit; true until somebody is told."""
        self.schema_fault = ""
        """Why this relibra may not use the schema that Redis holds; empty while it may, as far as is known."""
        self.settings_fault = ""
        """Why a server of this Redis may lose what was written to it; empty while none may, as far as is known."""
        self.weakness = ""
        """What a kill of this Redis may lose, which is accepted if it was so from the start; empty if nothing."""
        self._was_durable = False
        self.num_looks = 0
        """The number that the last look for what Redis lost was given."""

    @property
    def fault(self) -> str:
        """Why this Redis may not keep the state of jobs; empty while it may, as far as is known."""
        return self.settings_fault or self.schema_fault

    def judge(self, settings: Mapping[str, str]) -> str:
        """Return why servers with these settings may not keep the state of jobs, and keep it in mind.

        A Redis that was never durable is what its operator chose, for example a managed one. One that was durable and
        no longer is was changed by accident.

        Args:
            settings: those of `NEEDED` that servers told; what they did not tell counts as needed.
        """
        self.weakness = forgets(settings)
        self.settings_fault = evicts(settings) or (self.weakness if self._was_durable else "")
        self._was_durable |= not self.weakness
        return self.settings_fault

    async def on_connect(self, connection: Any) -> None:
        """Greet Redis over a new connection, and check it.

        Raises:
            UnfitRedis: it holds another schema version, or may lose what is written to it.
        """
        await connection.on_connect()
        if self.checks_settings:
            settings = await _settings(connection)
            is_unfit = evicts(settings) or (self._was_durable and forgets(settings))
            if is_unfit and not await _is_replica(connection):
                raise UnfitRedis(self.judge(settings))
        if self.checks_schema and (fault := other_schema(await _ask(connection, "GET", SCHEMA))):
            self.schema_fault = fault
            raise UnfitRedis(fault)


def evicts(settings: Mapping[str, str]) -> str:
    """Return why a Redis with these settings may not keep the state of jobs, or nothing if it evicts no keys."""
    policy = settings.get(POLICY, NO_EVICTION)
    if policy == NO_EVICTION:
        return ""
    return (
        f"this Redis evicts keys, plans among them, when it is full ({POLICY} {policy}); set {POLICY} to {NO_EVICTION}"
    )


def forgets(settings: Mapping[str, str]) -> str:
    """Return why a Redis with these settings may lose what it acknowledged, or nothing if it may not."""
    wrong = {name: settings.get(name, needed) for name, needed in _DURABLE.items()}
    faults = [f"{name} {value}" for name, value in wrong.items() if value != _DURABLE[name]]
    if not faults:
        return ""
    needed = " and ".join(f"{name} to {value}" for name, value in _DURABLE.items())
    return f"this Redis may lose what it acknowledged ({', '.join(faults)}); set {needed}"


def other_schema(stored: bytes | None) -> str:
    """Return why this relibra may not use a Redis with this schema version, or nothing if it may; None if empty."""
    version = SCHEMA_VERSION if stored is None else int(stored)
    if version == SCHEMA_VERSION:
        return ""
    advice = "upgrade relibra" if version > SCHEMA_VERSION else "start on an empty Redis"
    return f"this Redis holds schema version {version}, this relibra reads and writes {SCHEMA_VERSION}; {advice}"


async def _settings(connection: Any) -> dict[str, str]:
    """Return those of `NEEDED` that the server tells."""
    told: dict[str, str] = {}
    for name in NEEDED:
        answer = await _ask(connection, "CONFIG", "GET", name) or []
        values = list(answer.values() if isinstance(answer, dict) else answer[1::2])
        if values:
            told[name] = values[0].decode() if isinstance(values[0], bytes) else str(values[0])
    return told


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
