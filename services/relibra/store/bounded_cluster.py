"""A client of a Redis Cluster that waits for a connection, as a pool of one server does, instead of failing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis import exceptions
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterPipeline


class BoundedCluster(RedisCluster):
    """At most `num_at_once` commands and as many pipelines are under way, each with a connection to a node.

    Pipelines are counted by themselves because one that meets a moved slot sends commands of its own.
    """

    def __init__(self, *, num_at_once: int, **options: Any) -> None:
        super().__init__(max_connections=2 * num_at_once, **options)
        self._commands = asyncio.Semaphore(num_at_once)
        self.pipelines = asyncio.Semaphore(num_at_once)

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command when it is its turn."""
        async with self._commands, _closed_by_another():
            return await super().execute_command(*args, **kwargs)

    def pipeline(self, transaction: bool | None = None, shard_hint: bool | None = None) -> ClusterPipeline:
        """Return a pipeline; the store has no transactions, which redis-py would run in threads."""
        assert not transaction, "use a script"
        assert not shard_hint, "not a thing of a cluster"
        return _BoundedPipeline(self)  # type: ignore[abstract]


@asynccontextmanager
async def _closed_by_another() -> AsyncIterator[None]:
    """Name what redis-py meets when one command has closed the connection that another is about to write to."""
    try:
        yield
    except AttributeError as error:
        raise exceptions.ConnectionError("the connection was closed while it was in use") from error


class _BoundedPipeline(ClusterPipeline):
    cluster_client: BoundedCluster

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        async with self.cluster_client.pipelines, _closed_by_another():
            return await super().execute(raise_on_error, allow_redirections)
