"""`Store`: everything that the services ask of Redis, one base class per concept."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Self

from redis.asyncio import RedisCluster
from redis.exceptions import RedisError, ResponseError

from relibra.errors import Unavailable, Unsupported
from relibra.store.address import open_redis
from relibra.store.connection_guard import NEEDED, ConnectionGuard, UnfitRedis, other_schema
from relibra.store.expiry import Expiry
from relibra.store.keys import JOBS, LOOKS, SCHEMA, TOKENS
from relibra.store.leases import Leases
from relibra.store.notes import Notes
from relibra.store.rollbacks import Rollbacks
from relibra.store.schedules import Schedules
from relibra.store.sequences import Sequences
from relibra.store.summaries import Summaries
from relibra.store.tokens import Tokens

_CONFIGURATION_TIMEOUT_S = 5.0
"""How long one server of a Cluster has to tell how it is configured."""


class Store(Rollbacks, Sequences, Schedules, Leases, Expiry, Summaries, Notes, Tokens):
    """All durable state of all jobs. A store belongs to one event loop; tasks may share it.

    Every method raises `Unavailable` when Redis does not answer, and may then be called again.
    """

    @classmethod
    def open(cls, url: str) -> "Store":
        """Return the store at a URL (see `address`); it connects with the first call."""
        guard = ConnectionGuard()
        return cls(open_redis(url, guard), guard)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def ping(self) -> None:
        """Return if Redis serves. This reads a key, because a Cluster that has lost slots still answers PING."""
        await self._redis.exists(SCHEMA)

    async def check(self) -> None:
        """Return if this Redis may keep the state of jobs; write the schema version into an empty one.

        From then on each new connection is checked too, and calls over one that does not pass raise `Unavailable`.

        Raises:
            Unsupported: Redis holds another schema version, or may evict keys.
        """
        await self.check_schema()
        await self._mark_schema()
        await self.check_schema()
        self._guard.is_emptied = False
        await self.check_settings()
        self._guard.checks_settings = True

    async def check_again(self) -> bool:
        """Return if a Redis that `check` accepted answers, and may still keep the state of jobs as far as is known.

        One read of a key, because a Cluster that has lost slots still answers PING. While Redis is unfit, scripts are
        refused.

        Returns:
            Whether Redis had lost everything. It is marked again as a Redis of this schema version.

        Raises:
            Unsupported: as in `check`.
            Corrupt: the list of jobs or that of tokens has been overwritten.
        """
        version = await self._redis.get(SCHEMA)
        if version is None:
            await self._mark_schema()
        await self._check_types((JOBS, TOKENS))
        # Only the planner that marked the store says that it was empty.
        is_emptied, self._guard.is_emptied = self._guard.is_emptied, False
        self._guard.schema_fault = other_schema(version)
        if self._guard.fault:
            raise Unsupported(self._guard.fault)
        return is_emptied

    async def check_settings(self) -> str:
        """Return what a kill of Redis may lose, which is accepted if it was so from the start; empty if nothing.

        Servers that do not answer, or do not tell, are passed over. Connections to a server that comes back are checked
        before they are used.

        Raises:
            Unsupported: a server may evict keys, or kept what it acknowledged and no longer does; scripts are refused
                until a later call finds that all is well.
        """
        settings = NEEDED | await self._settings_but(NEEDED)
        if fault := self._guard.judge(settings):
            raise Unsupported(fault)
        return self._guard.weakness

    async def has_gone_back(self) -> bool:
        """Return whether Redis lost something that it had acknowledged before the last call.

        A restored backup and a replica that was behind do that. Each call raises a number, which must be above that of
        the call before. In a Cluster, this tells of the server alone that stores the number. `check_again` tells of a
        Redis that lost everything.
        """
        schema, num_looks = await self._answers([("get", SCHEMA), ("incr", LOOKS)])
        if schema is None:
            return False
        seen, self._guard.num_looks = self._guard.num_looks, int(num_looks)
        return self._guard.num_looks <= seen

    async def max_memory_bytes(self) -> int | None:
        """Return the memory at which Redis refuses writes; None if it has no such limit, or does not tell.

        Of the primaries of a Cluster the smallest one counts, because all data of a job lies on one of them.
        """
        limits = await self._settings_but({"maxmemory": "0"})
        return min(map(int, limits["maxmemory"].split(", "))) if limits else None

    @property
    def fault(self) -> str:
        """Why this Redis may not keep the state of jobs; empty while it may, as far as is known."""
        return self._guard.fault

    async def check_schema(self) -> None:
        """Return if this relibra can read what Redis holds. This writes nothing; an empty Redis will do.

        Raises:
            Unsupported: Redis holds another schema version.
        """
        if fault := other_schema(await self._redis.get(SCHEMA)):
            raise Unsupported(fault)
        self._guard.checks_schema = True

    async def _settings_but(self, needed: Mapping[str, str]) -> dict[str, str]:
        """Return the settings with another value than `needed` on the server, or on any primary of a Cluster.

        Settings that a server does not tell, as some managed ones do not, are left out. Primaries of a Cluster that do
        not answer are passed over, but not all of them.
        """
        values: dict[str, set[str]] = {name: set() for name in needed}

        async def ask(**server: Any) -> None:
            for name in needed:
                with contextlib.suppress(ResponseError):
                    told = await self._redis.config_get(name, **server)
                    values[name].add(str(told.get(name, needed[name])))

        if isinstance(self._redis, RedisCluster):
            await self._redis.initialize()
            silent: list[Exception] = []
            primaries = self._redis.get_primaries()
            for node in primaries:
                try:
                    async with asyncio.timeout(_CONFIGURATION_TIMEOUT_S):
                        await ask(target_nodes=node)
                except UnfitRedis:
                    raise
                except (RedisError, OSError, TimeoutError) as error:
                    silent.append(error)
            if len(silent) == len(primaries):
                raise Unavailable(f"no server of the Cluster answers: {silent[-1] if silent else 'it has none'}")
        else:
            await ask()
        others = {name: ", ".join(sorted(found - {needed[name]})) for name, found in values.items()}
        return {name: value for name, value in others.items() if value}
