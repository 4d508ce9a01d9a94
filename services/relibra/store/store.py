"""`Store`: everything that the services ask of Redis, one base class per concept."""

import logging
from typing import Any, Self

from redis.asyncio import RedisCluster
from redis.exceptions import ResponseError

from relibra.errors import Unavailable, Unsupported
from relibra.store.address import open_redis
from relibra.store.connection import raises_unavailable
from relibra.store.connection_guard import NO_EVICTION, POLICY, ConnectionGuard, evicts, other_schema
from relibra.store.expiry import Expiry
from relibra.store.joining import Joining
from relibra.store.keys import SCHEMA, SCHEMA_VERSION
from relibra.store.leases import Leases
from relibra.store.refusals import Refusals
from relibra.store.rollbacks import Rollbacks
from relibra.store.schedules import Schedules
from relibra.store.sequences import Sequences
from relibra.store.summaries import Summaries
from relibra.store.tokens import Tokens

logger = logging.getLogger(__name__)


class Store(Joining, Rollbacks, Sequences, Schedules, Leases, Expiry, Summaries, Refusals, Tokens):
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

    @raises_unavailable
    async def ping(self) -> None:
        """Return if Redis serves. This reads a key, because a Cluster that has lost slots still answers PING."""
        await self._redis.exists(SCHEMA)

    @raises_unavailable
    async def check(self) -> None:
        """Return if this Redis may keep the state of jobs; write the schema version into an empty one.

        From then on each new connection is checked too, and calls over one that does not pass raise `Unavailable`.

        Raises:
            Unsupported: Redis holds another schema version, or may evict keys.
        """
        await self._redis.set(SCHEMA, SCHEMA_VERSION, nx=True)
        await self.check_schema()
        try:
            evicting = await self._configured_but(POLICY, NO_EVICTION)
            for name, wanted in (("appendonly", "yes"), ("appendfsync", "always")):
                if other := await self._configured_but(name, wanted):
                    logger.warning(
                        "Redis has %s %s: a kill may lose what was acknowledged; set %s",
                        name,
                        other,
                        wanted,
                    )
        except ResponseError:
            self._guard.hides_configuration, evicting = True, ""
        if evicting:
            raise Unsupported(evicts(evicting))
        self._guard.checks_policy = True

    @raises_unavailable
    async def check_again(self) -> bool:
        """Return if a Redis that `check` accepted may still keep the state of jobs; scripts are refused while not.

        Returns:
            Whether Redis had lost everything. It is marked again as a Redis of this schema version.

        Raises:
            Unsupported: as in `check`.
        """
        is_emptied = await self._redis.get(SCHEMA) is None
        if is_emptied:
            # Of several planners, one tells of it.
            is_emptied = bool(await self._redis.set(SCHEMA, SCHEMA_VERSION, nx=True))
        try:
            await self.check_schema()
            if evicting := await self._evicting_policy():
                raise Unsupported(evicts(evicting))
        except Unsupported as error:
            self._guard.fault = str(error)
            raise
        self._guard.fault = ""
        return is_emptied

    @property
    def fault(self) -> str:
        """Why this Redis may not keep the state of jobs; empty while it may, as far as is known."""
        return self._guard.fault

    @raises_unavailable
    async def check_schema(self) -> None:
        """Return if this relibra can read what Redis holds. This writes nothing; an empty Redis will do.

        Raises:
            Unsupported: Redis holds another schema version.
        """
        if fault := other_schema(await self._redis.get(SCHEMA)):
            raise Unsupported(fault)
        self._guard.checks_schema = True

    async def _evicting_policy(self) -> str:
        """Return the policy by which this Redis evicts; empty if it does not, or does not tell."""
        if self._guard.hides_configuration:
            return ""
        try:
            return await self._configured_but(POLICY, NO_EVICTION)
        except ResponseError:
            self._guard.hides_configuration = True  # until the next connection asks
            return ""

    async def _configured_but(self, name: str, wanted: str) -> str:
        """Return the values other than `wanted` that the server, or any primary of a Cluster, has for `name`."""
        where: list[dict[str, Any]] = [{}]
        if isinstance(self._redis, RedisCluster):
            await self._redis.initialize()
            where = [{"target_nodes": node} for node in self._redis.get_primaries()]
        found = [(await self._redis.config_get(name, **each)).get(name, wanted) for each in where]
        return ", ".join(sorted(set(found) - {wanted}))

    async def is_reachable(self) -> bool:
        """Return whether Redis answers."""
        try:
            await self.ping()
        except Unavailable:
            return False
        return True
