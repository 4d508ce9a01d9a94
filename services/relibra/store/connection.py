"""What all parts of the store share: a client, scripts, and what becomes `Unavailable` when Redis fails."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from importlib import resources
from typing import Any, ParamSpec, TypeVar

from redis import exceptions

from relibra.errors import Unavailable
from relibra.store.address import RedisClient

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Redis cannot serve, whatever the request; asking again later is right.
_UNAVAILABLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
)

_UNAVAILABLE_CODES = ("OOM ", "READONLY ", "MISCONF ", "LOADING ", "CLUSTERDOWN ", "NOREPLICAS ", "BUSY ")


class Connected:
    """A part of the store: a concept's questions to Redis, over a connection that all parts share."""

    def __init__(self, redis: RedisClient) -> None:
        # redis-py types every answer as a union over all ways to configure a client; ours always answers in bytes.
        self._redis: Any = redis

    async def _script(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run `<name>.lua`: a write that must look before it writes."""
        return await self._redis.register_script(_source(name))(keys=keys, args=args)


@functools.cache
def _source(name: str) -> str:
    return resources.files("relibra.store").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


def raises_unavailable(method: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """Decorate a coroutine function so that Redis being out of reach is `Unavailable`, and cancelling ends the call."""

    @functools.wraps(method)
    async def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        task = asyncio.current_task()
        assert task is not None
        num_cancelled = task.cancelling()
        try:
            return await method(*args, **kwargs)
        except _UNAVAILABLE as error:
            raise Unavailable(f"Redis does not serve: {error or type(error).__name__}") from error
        except exceptions.ResponseError as error:
            # What a script met inside Redis comes as a plain error with the code in its text.
            if any(code in str(error) for code in _UNAVAILABLE_CODES):
                raise Unavailable(f"Redis does not serve: {error}") from error
            raise
        finally:
            # redis-py writes in `asyncio.wait_for`, which before Python 3.12 returns as if nothing was where it is
            # cancelled just when the write is done: a loop that asks Redis for ever would go on for ever.
            if task.cancelling() > num_cancelled:
                raise asyncio.CancelledError

    return guarded
