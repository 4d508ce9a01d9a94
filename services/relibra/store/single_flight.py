"""A bounded cache for what the store returns: many callers that ask for one key at a time share one read."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(slots=True)
class _Flight(Generic[V]):
    started_at: float
    task: asyncio.Task[V]
    size: int = 1
    """How much of the capacity it takes: one until its value is made."""

    @property
    def value(self) -> V | None:
        """The finished value; None while it is being made, and if that failed."""
        task = self.task
        return None if not task.done() or task.cancelled() or task.exception() is not None else task.result()


class SingleFlight(Generic[V]):
    """The values that were used last; each is made once, however many callers ask for it at the same time.

    A value is returned for `fresh_s` seconds after its making began, and then made again. A result of None and an
    exception reach the callers that wait for them and are not kept. For one event loop.
    """

    def __init__(self, capacity: int, *, fresh_s: float = math.inf, size: Callable[[V], int] = lambda _: 1) -> None:
        """Begin without values.

        Args:
            capacity: how much the values may take in all; the newest one may take more.
            fresh_s: how long a value is returned.
            size: how much of the capacity a value takes.
        """
        self._capacity = capacity
        self._fresh_s = fresh_s
        self._size = size
        self._taken = 0
        self._flights: OrderedDict[Hashable, _Flight[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._flights)

    def last(self, key: Hashable) -> V | None:
        """Return the value that was made last for `key`, fresh or not; None if there is none."""
        flight = self._flights.get(key)
        return None if flight is None else flight.value

    def drop(self, is_dropped: Callable[[Hashable], bool]) -> None:
        """Forget the values of some keys; callers that wait for one still get it."""
        for key in list(filter(is_dropped, self._flights)):
            self._forget(key)

    async def get(self, key: Hashable, make: Callable[[], Awaitable[V]]) -> V:
        """Return the value of `key`; await `make` for it if there is no fresh one."""
        flight = self._flights.get(key)
        if flight is None or not self._is_fresh(flight):
            if flight is not None:
                self._forget(key)
            flight = _Flight(time.monotonic(), asyncio.ensure_future(_await(make)))
            flight.task.add_done_callback(lambda _: self._end(key, flight))
            self._flights[key] = flight
            self._taken += flight.size
            self._make_room()
        self._flights.move_to_end(key)
        # Shielded: a caller that hangs up must not cancel the making for the others.
        return await asyncio.shield(flight.task)

    def _is_fresh(self, flight: _Flight[V]) -> bool:
        return not flight.task.done() or time.monotonic() - flight.started_at < self._fresh_s

    def _end(self, key: Hashable, flight: _Flight[V]) -> None:
        """Take room for a value that was just made; forget it if there is none."""
        if self._flights.get(key) is not flight:
            return
        value = flight.value
        if value is None:
            self._forget(key)
            return
        size = self._size(value)
        self._taken += size - flight.size
        flight.size = size
        self._make_room()

    def _make_room(self) -> None:
        while self._taken > self._capacity and len(self._flights) > 1:
            self._forget(next(iter(self._flights)))

    def _forget(self, key: Hashable) -> None:
        self._taken -= self._flights.pop(key).size


async def _await(make: Callable[[], Awaitable[V]]) -> V:
    return await make()
