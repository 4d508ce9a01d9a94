"""Bounded memory of what is expensive to make and never changes."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class Memory(Generic[V]):
    """The `capacity` values used last, each made once however many ask for it at the same time."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tasks: OrderedDict[Hashable, asyncio.Task[V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    async def get(self, key: Hashable, make: Callable[[], Awaitable[V]]) -> V:
        """Return the value of `key`; `make` is awaited where it is not there. What raises is not kept."""
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._tasks[key] = asyncio.ensure_future(_awaited(make))
            while len(self._tasks) > self._capacity:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(key)
        # Shielded: one who hangs up must not cancel what the others wait for.
        return await asyncio.shield(task)


async def _awaited(make: Callable[[], Awaitable[V]]) -> V:
    return await make()
