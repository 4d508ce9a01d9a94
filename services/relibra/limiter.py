"""One limit on what an identity may hold at the same time, and on how fast it may take it (S6, S7).

An identity is a job, one connection of a caller that may act for all jobs, or a viewer. All limits on concurrency and
speed at a planner are limiters: calls, streams, messages that are received or worked on, packings, bytes of reports,
refusals. So are those on the requests of a viewer at the status service.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from relibra.errors import TooManyCalls

_MAX_CLOCKS = 4096
"""Callers may send any number of names; beyond this many clocks, those in the past are dropped."""


@dataclass(eq=False)
class Hold:
    """One thing that an identity holds, such as an open stream."""

    used_at: float = field(default_factory=time.monotonic)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when this hold must end, because another one of its identity takes its place."""

    def use(self) -> None:
        """Note that the hold is in use, so that it is the last one of its identity that makes room."""
        self.used_at = time.monotonic()


class Limiter:
    """A number of things that each identity may hold, and a rate at which it may take. For one event loop.

    Args:
        what: what is held, for messages: "calls open".
        limit: the name of the limit, for messages and metrics.
        advice: what a refused caller can do, for messages.
        holder: what an identity is, for messages.
        per_identity: how much one identity may hold, or how many turns it has; None for no limit.
        total: how much all identities may hold together. Beyond it, each of them may still hold an equal share, so an
            identity that takes all it can get takes nothing from the others. None for no limit.
        idle_s: how long a hold must be unused before it makes room for another one of its identity; None for never.
        rate_per_s: how much an identity may take per second.
        burst_s: for how many seconds of the rate an identity need not wait.
        max_delay_s: the longest wait; an identity that takes more than this allows is not held up any longer.
    """

    def __init__(
        self,
        what: str,
        *,
        limit: str = "",
        advice: str = "",
        holder: str = "job",
        per_identity: int | None = None,
        total: int | None = None,
        idle_s: float | None = None,
        rate_per_s: float = float("inf"),
        burst_s: float = 1.0,
        max_delay_s: float = float("inf"),
    ) -> None:
        self._what = what
        self._limit = limit
        self._advice = advice
        self._holder = holder
        self._per_identity = per_identity
        self._total = total
        self._idle_s = idle_s
        self._rate_per_s = rate_per_s
        self._burst_s = burst_s
        self._max_delay_s = max_delay_s
        self._holds: dict[str, set[Hold]] = {}
        self._num_holds = 0
        # A semaphore lives as long as a call has a turn or waits for one.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._spent_until: dict[str, float] = {}

    def __len__(self) -> int:
        return self._num_holds

    @contextmanager
    def hold(self, identity: str) -> Iterator[Hold]:
        """Let an identity hold one thing more for as long as the context lasts; an idle hold may make room for it.

        Raises:
            TooManyCalls: the identity holds as much as it may.
        """
        self._make_room(identity)
        hold = Hold()
        self._holds.setdefault(identity, set()).add(hold)
        self._num_holds += 1
        try:
            yield hold
        finally:
            self._release(identity, hold)

    def made_room(self) -> TooManyCalls:
        """Return the error for the caller whose hold had to make room for another one."""
        return self._refusal(
            f"this one was idle for {self._idle_s:g} s and made room for another {self._what} of its job"
        )

    @asynccontextmanager
    async def turn(self, identity: str) -> AsyncIterator[None]:
        """Wait until fewer than `per_identity` calls of the identity have a turn, then have one."""
        free = self._turns.setdefault(identity, asyncio.Semaphore(self._per_identity or 1))
        async with free:
            yield

    def delay_s(self, identity: str, amount: float, now: float) -> float:
        """Account for an amount that an identity takes; return how long the identity must wait for it.

        This is the generic cell rate algorithm with one virtual clock per identity: what it takes moves its clock on.
        https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm

        Args:
            identity: who takes it.
            amount: in the unit of the rate.
            now: monotonic time in seconds.
        """
        if len(self._spent_until) >= _MAX_CLOCKS:
            # A clock in the past means the same as no clock.
            self._spent_until = {name: until for name, until in self._spent_until.items() if until > now}
        spent_until = max(self._spent_until.get(identity, now), now) + amount / self._rate_per_s
        self._spent_until[identity] = spent_until = min(spent_until, now + self._burst_s + self._max_delay_s)
        return max(0.0, spent_until - now - self._burst_s)

    def _make_room(self, identity: str) -> None:
        holds = self._holds.get(identity, set())
        if self._per_identity is not None and len(holds) >= self._per_identity:
            refusal = self._refusal(
                f"{self._holder} {identity!r} has {self._per_identity} {self._what} at this service"
            )
            if self._idle_s is None:
                raise refusal
            # A refusal must stay cheap, so this compares holds only where one of them may make room.
            oldest = min(holds, key=lambda hold: hold.used_at)
            if time.monotonic() - oldest.used_at < self._idle_s:
                raise refusal
            self._release(identity, oldest)
            oldest.is_over.set()
        if self._total is not None and self._num_holds >= self._total:
            num_identities = len(self._holds) + (not holds)
            share = self._total // num_identities
            if len(holds) >= share:
                raise self._refusal(
                    f"this service has {self._num_holds} {self._what}; {num_identities} callers may have {share} each, "
                    f"and this one has {len(holds)}"
                )

    def _refusal(self, text: str) -> TooManyCalls:
        return TooManyCalls(f"{text} ({self._limit}); {self._advice}", limit=self._limit)

    def _release(self, identity: str, hold: Hold) -> None:
        holds = self._holds.get(identity, set())
        if hold in holds:
            holds.remove(hold)
            self._num_holds -= 1
            if not holds:
                del self._holds[identity]
