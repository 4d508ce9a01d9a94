"""Connections to Redis: their timeouts, and the one place where their failures become `Unavailable`."""

import functools
from collections.abc import Callable, Coroutine
from importlib import resources
from typing import Any, ParamSpec, TypeVar
from urllib.parse import urlsplit, urlunsplit

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

from relibra.errors import InvalidInput, Unavailable

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Redis cannot serve, whatever the request; asking again later is right.
_UNAVAILABLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
)

_UNAVAILABLE_CODES = ("OOM ", "READONLY ", "MISCONF ", "LOADING ", "CLUSTERDOWN ")

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0


class Connected:
    """A part of the store: a concept's questions to Redis, over a connection that all parts share."""

    def __init__(self, redis: Redis) -> None:
        # redis-py types every answer as a union over all ways to configure a client; ours always answers in bytes.
        self._redis: Any = redis

    async def _script(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run `<name>.lua`: a write that must look before it writes."""
        return await self._redis.register_script(_source(name))(keys=keys, args=args)


@functools.cache
def _source(name: str) -> str:
    return resources.files("relibra.store").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


def open_redis(url: str) -> Redis:
    """Return a client for `url`; connecting happens with the first command.

    `rediss://user:password@host?ssl_ca_certs=/path` is TLS with an ACL user; the certificate is checked by default.

    Raises:
        InvalidInput: the URL is not one of Redis.
    """
    try:
        return Redis.from_url(
            url,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            # Every write of the store is idempotent, so a command that failed half-way may be sent again.
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), retries=2),
        )
    except ValueError as error:
        raise InvalidInput.of(
            "redis url", expected="redis://, rediss:// or unix://", got=repr(without_password(url))
        ) from error


def without_password(url: str) -> str:
    """Return `url` as it may be printed."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"))


def raises_unavailable(method: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """Decorate a coroutine function so that Redis being out of reach is `Unavailable`."""

    @functools.wraps(method)
    async def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return await method(*args, **kwargs)
        except _UNAVAILABLE as error:
            raise Unavailable(f"Redis does not serve: {error or type(error).__name__}") from error
        except exceptions.ResponseError as error:
            # What a script met inside Redis comes as a plain error with the code in its text.
            if any(code in str(error) for code in _UNAVAILABLE_CODES):
                raise Unavailable(f"Redis does not serve: {error}") from error
            raise

    return guarded
