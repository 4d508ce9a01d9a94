"""`Store`: every question the services ask of Redis, one part a concept."""

from typing import Any, Self

from redis.asyncio import RedisCluster
from redis.exceptions import ResponseError

from relibra.errors import Unavailable, Unsupported
from relibra.store.address import open_redis
from relibra.store.connection import raises_unavailable
from relibra.store.jobs import Jobs
from relibra.store.keys import SCHEMA, SCHEMA_VERSION
from relibra.store.leases import Leases
from relibra.store.plans import Plans
from relibra.store.reports import Reports
from relibra.store.schedules import Schedules
from relibra.store.sequences import Sequences
from relibra.store.steps import Steps
from relibra.store.tokens import Tokens


class Store(Jobs, Sequences, Schedules, Leases, Plans, Steps, Reports, Tokens):
    """All durable state of all jobs. One per process and event loop; safe to share between tasks.

    Every method raises `Unavailable` when Redis does not answer, and may then be called again.
    """

    @classmethod
    def open(cls, url: str) -> "Store":
        """Return the store at a URL of one of the forms in `address`; connecting happens with the first call."""
        return cls(open_redis(url))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    @raises_unavailable
    async def ping(self) -> None:
        """Return if Redis serves: a Cluster that has lost slots still answers PING."""
        await self._redis.exists(SCHEMA)

    @raises_unavailable
    async def check(self) -> None:
        """Return if this Redis can be trusted with the state of jobs; a new one is marked with the schema's version.

        Raises:
            Unsupported: it was written by a newer or incompatible relibra, or may evict keys.
        """
        await self._redis.set(SCHEMA, SCHEMA_VERSION, nx=True)
        found = int(await self._redis.get(SCHEMA))
        if found != SCHEMA_VERSION:
            advice = "upgrade relibra" if found > SCHEMA_VERSION else "start on an empty Redis"
            raise Unsupported(
                f"this Redis holds schema version {found}, this relibra reads and writes {SCHEMA_VERSION}; {advice}"
            )
        try:
            policies = set(await self._eviction_policies())
        except ResponseError:
            return  # a managed Redis that hides its configuration
        if evicting := policies - {"noeviction"}:
            raise Unsupported(
                f"this Redis evicts keys when it is full (maxmemory-policy {', '.join(sorted(evicting))}), plans among "
                "them; set maxmemory-policy to noeviction"
            )

    async def _eviction_policies(self) -> list[Any]:
        """Return the policy of the server, or of every primary of a cluster."""
        where: list[dict[str, Any]] = [{}]
        if isinstance(self._redis, RedisCluster):
            await self._redis.initialize()
            where = [{"target_nodes": node} for node in self._redis.get_primaries()]
        answers = [await self._redis.config_get("maxmemory-policy", **each) for each in where]
        return [policy for answer in answers for policy in answer.values()]

    async def is_reachable(self) -> bool:
        """Return whether Redis answers."""
        try:
            await self.ping()
        except Unavailable:
            return False
        return True
