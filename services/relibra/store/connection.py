"""The base of all parts of the store: a client, Lua scripts, and the Redis errors that become `Unavailable`."""

import asyncio
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Coroutine, Iterable
from importlib import resources
from typing import Any, ParamSpec, TypeVar

from redis import exceptions

from relibra.errors import Corrupt, Unavailable
from relibra.store.address import RedisClient
from relibra.store.connection_guard import ConnectionGuard
from relibra.store.keys import LOOKS, SCHEMA, SCHEMA_VERSION, type_of

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Redis cannot serve any request now; retrying later is right.
_UNAVAILABLE = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
)

_MOST_UNSEEN_LOOKS = 1000
"""More than other planners look between two looks of this one."""
_MEASURE = "field_bytes"
"""The Lua function that scripts share."""
_PROTECTED = "running in protected mode"
_DAMAGE = re.compile("WRONGTYPE|is not an integer")
_UNAVAILABLE_CODES = ("OOM ", "READONLY ", "MISCONF ", "LOADING ", "CLUSTERDOWN ", "NOREPLICAS ", "BUSY ")


class Connected:
    """One part of the store: the questions to Redis about one concept, over a client that all parts share.

    Every public coroutine function of a part is one that `raises_unavailable`.
    """

    def __init_subclass__(cls) -> None:
        for name, method in list(vars(cls).items()):
            if inspect.iscoroutinefunction(method) and not name.startswith("_"):
                setattr(cls, name, raises_unavailable(method))

    def __init__(self, redis: RedisClient, guard: ConnectionGuard | None = None) -> None:
        # redis-py types every answer as a union over all client configurations; this client always answers in bytes.
        self._redis: Any = redis
        self._guard = guard or ConnectionGuard()

    async def _answers(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Return the answers to some commands, the method of redis-py and its arguments each, in one round trip.

        Raises:
            Corrupt: a key has another type than relibra gives it.
        """
        return list(map(sound, await self._answers_or_faults(commands)))

    async def _answers_or_faults(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Return what `_answers` returns, with the `Corrupt` in place of the answer about a key of another type."""
        asked = list(commands)
        try:
            return await self._execute(asked)
        except exceptions.ResponseError as error:
            if not _DAMAGE.search(str(error)):
                raise
        # Only now without raising: a pipeline on a Cluster that raises no errors tries no command again.
        answers = await self._execute(asked, raise_on_error=False)
        for index, answer in enumerate(answers):
            if isinstance(answer, Exception):
                if not _DAMAGE.search(str(answer)):
                    raise answer
                answers[index] = _other_type(asked[index][1])
        return answers

    async def _execute(self, commands: list[tuple[Any, ...]], **options: bool) -> list[Any]:
        pipe = self._redis.pipeline(transaction=False)
        for name, *arguments in commands:
            getattr(pipe, name)(*arguments)
        return await pipe.execute(**options) if commands else []

    async def _check_types(self, keys: Iterable[str]) -> None:
        """Return if each key has the type that relibra gives it, or is not there.

        Raises:
            Corrupt: one has another type; the text names it.
        """
        names = list(keys)
        for key, kind in zip(names, await self._answers(("type", key) for key in names), strict=True):
            if kind.decode() not in (type_of(key), "none"):
                raise _other_type(key)

    async def _mark_schema(self) -> None:
        """Write the schema version into a Redis that has none; one that had been marked has lost everything."""
        if await self._redis.set(SCHEMA, SCHEMA_VERSION, nx=True) and self._guard.checks_schema:
            self._guard.is_emptied = True
            if self._guard.num_looks:
                # This planner tells of the loss, so the others need not tell of it as one of the newest writes.
                await self._redis.set(LOOKS, self._guard.num_looks + _MOST_UNSEEN_LOOKS)

    async def _script(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run `<name>.lua`, a write that must look before it writes.

        Raises:
            Unavailable: this Redis may not keep the state of jobs.
            Corrupt: a key has another type than relibra gives it.
        """
        if self._guard.fault:
            raise Unavailable(f"nothing is acknowledged: {self._guard.fault}")
        source, digest = _source(name)
        try:
            try:
                return await self._redis.evalsha(digest, len(keys), *keys, *args)
            except exceptions.NoScriptError:
                # One command loads and runs the script, so that no SCRIPT FLUSH comes between.
                return await self._redis.eval(source, len(keys), *keys, *args)
        except exceptions.ResponseError as error:
            if _DAMAGE.search(str(error)):
                await self._check_types(keys)
            raise


def sound(answer: Any) -> Any:
    """Return what was read, or raise the `Corrupt` in its place."""
    if isinstance(answer, Corrupt):
        raise answer
    return answer


def _other_type(key: str = "") -> Corrupt:
    what = (
        f"key {key} in Redis is no {type_of(key)}" if key else "a key in Redis has another type than relibra gives it"
    )
    return Corrupt(f"{what}: something else than relibra wrote it. Nothing is made of it")


@functools.cache
def _source(name: str) -> tuple[str, str]:
    """Return a script, with the function that scripts share if it calls that, and the digest that Redis knows it by."""
    source = resources.files("relibra.store").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")
    if f"{_MEASURE}(" in source and name != _MEASURE:
        source = f"{_source(_MEASURE)[0]}\n{source}"
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def raises_unavailable(method: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """Decorate a coroutine function: it raises `Unavailable` if Redis cannot serve, and cancelling it ends it.

    It raises `Corrupt` for a key of another type than relibra gives it.
    """

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
            if _PROTECTED in str(error):
                raise Unavailable(
                    "Redis refuses callers on other machines, because it has no password and runs in protected mode: "
                    "give it a password, or set `protected-mode no` on a network that you trust"
                ) from error
            # An error inside a script arrives as a plain ResponseError with the code in its text.
            if any(code in str(error) for code in _UNAVAILABLE_CODES):
                raise Unavailable(f"Redis does not serve: {error}") from error
            if _DAMAGE.search(str(error)):
                raise _other_type() from error
            raise
        finally:
            # redis-py writes in `asyncio.wait_for`. Before Python 3.12 `wait_for` swallows a cancellation that comes
            # just as the write is done, and an endless loop over Redis would then never end.
            if task.cancelling() > num_cancelled:
                raise asyncio.CancelledError

    return guarded
