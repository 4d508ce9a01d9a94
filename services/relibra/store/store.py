"""`Store`: everything that the services ask of Redis, one base class per concept."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, TypeVar

from redis.asyncio import RedisCluster
from redis.exceptions import RedisError, ResponseError

from relibra.errors import Unavailable, Unsupported
from relibra.store.address import open_redis
from relibra.store.connection_guard import NEEDED, ConnectionGuard, UnfitRedis, other_schema
from relibra.store.documents import reading
from relibra.store.expiry import Expiry
from relibra.store.keys import JOBS, LOOKS, LOSS, SCHEMA, TOKENS
from relibra.store.leases import Leases
from relibra.store.notes import Notes
from relibra.store.rollbacks import Rollbacks
from relibra.store.schedules import Schedules
from relibra.store.sequences import Sequences
from relibra.store.servers import ServerState
from relibra.store.summaries import Summaries
from relibra.store.tokens import Tokens

_Answer = TypeVar("_Answer")

_LOSS_SHOWN_S = 86_400
_ANSWER_TIMEOUT_S = 5.0
"""How long one server of a Cluster has to tell of itself."""


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

        async def ask(**server: Any) -> dict[str, Any]:
            answer: dict[str, Any] = {}
            for name in NEEDED:
                with contextlib.suppress(ResponseError):
                    answer |= await self._redis.config_get(name, **server)
            return answer

        answers = await self._of_servers(ask)
        others = {name: {str(answer.get(name, fit)) for answer in answers} - {fit} for name, fit in NEEDED.items()}
        settings = {name: ", ".join(sorted(others[name])) or fit for name, fit in NEEDED.items()}
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

    async def note_loss(self, lost: str) -> None:
        """Keep a note of what Redis lost for a day; pages show it."""
        note = {"lost": lost, "at": time.time()}
        await self._redis.set(LOSS, json.dumps(note), ex=_LOSS_SHOWN_S)

    async def last_loss(self) -> tuple[str, float] | None:
        """Return what Redis lost within a day, and the Unix time at which a planner noticed; None if it lost none."""
        (note,) = await self._answers([("get", LOSS)])
        if note is None:
            return None
        with reading(f"key {LOSS}"):
            fields = json.loads(note)
            return str(fields["lost"]), float(fields["at"])

    async def server_state(self) -> ServerState:
        """Return what the servers tell of their memory, their files and their clocks; some managed ones do not."""

        async def ask(**server: Any) -> Mapping[str, Any]:
            with contextlib.suppress(ResponseError):
                info: Mapping[str, Any] = await self._redis.info(**server)
                return dict(info, asked_at=time.time())
            return {}

        return ServerState.of(await self._of_servers(ask))

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

    async def _of_servers(self, ask: Callable[..., Awaitable[_Answer]]) -> list[_Answer]:
        """Return the answers of the server, or of the primaries of a Cluster that answer.

        Raises:
            Unavailable: none of them answers.
        """
        if not isinstance(self._redis, RedisCluster):
            return [await ask()]
        await self._redis.initialize()
        answers: list[_Answer] = []
        silence: Exception | str = "it has none"

        async def ask_in_time(node: Any) -> _Answer:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await ask(target_nodes=node)

        asked = map(ask_in_time, self._redis.get_primaries())
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, (RedisError, OSError, TimeoutError)) and not isinstance(answer, UnfitRedis):
                silence = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers.append(answer)
        if not answers:
            raise Unavailable(f"no server of the Cluster answers: {silence}")
        return answers
