"""A client of a Redis Cluster that waits for a free connection instead of failing, as the pool of one server does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from redis import exceptions
from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterPipeline

from relibra.store.connection_guard import ConnectionGuard


class BoundedCluster(RedisCluster):
    """A client that runs at most `num_at_once` commands and as many pipelines at a time, each on its own connection.

    Pipelines are counted separately because a pipeline that meets a moved slot sends commands of its own.
    """

    def __init__(self, *, num_at_once: int, guard: ConnectionGuard | None = None, **options: Any) -> None:
        super().__init__(max_connections=2 * num_at_once, **options)
        # redis-py has no parameter for this. The servers that it finds later get the options of the manager.
        checked = {"redis_connect_func": (guard or ConnectionGuard()).on_connect}
        self.nodes_manager.connection_kwargs.update(checked)
        for node in self.nodes_manager.startup_nodes.values():
            node.connection_kwargs.update(checked)
        self._commands = asyncio.Semaphore(num_at_once)
        self.pipelines = asyncio.Semaphore(num_at_once)

    async def initialize(self, *args: Any, **kwargs: Any) -> Self:
        """Ask which servers there are, unless that is known."""
        async with _closed_by_another():
            await super().initialize(*args, **kwargs)
        return self

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command as soon as fewer than `num_at_once` are running."""
        async with self._commands, _closed_by_another():
            return await super().execute_command(*args, **kwargs)

    def pipeline(self, transaction: bool | None = None, shard_hint: bool | None = None) -> ClusterPipeline:
        """Return a pipeline. The store uses no transactions; redis-py would run them in threads."""
        assert not transaction, "use a script"
        assert not shard_hint, "a Cluster has no shard hints"
        return _BoundedPipeline(self)  # type: ignore[abstract]


@asynccontextmanager
async def _closed_by_another() -> AsyncIterator[None]:
    """Raise a ConnectionError for what redis-py and asyncio raise when another command closed the connection.

    redis-py raises an AttributeError, and the transports of asyncio in Python 3.12 a TypeError.
    """
    try:
        yield
    except (AttributeError, TypeError) as error:
        raise exceptions.ConnectionError("the connection was closed while it was in use") from error


class _BoundedPipeline(ClusterPipeline):
    cluster_client: BoundedCluster

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:
        async with self.cluster_client.pipelines, _closed_by_another():
            return await super().execute(raise_on_error, allow_redirections)
