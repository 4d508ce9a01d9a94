"""Work on large messages: in a thread beside the event loop, one message of an account at a time (S6).

A schedule of 262144 sequences takes 0.3 s of work. On the event loop, every other call would wait that long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from relibra.planner.limits.limiter import Limiter

T = TypeVar("T")

LARGE_SIZE_BYTES = 256 << 10
"""Work on smaller messages takes a few milliseconds at most."""
SWITCH_INTERVAL_S = 0.001
"""How long the thread may run on while the event loop waits for the interpreter; by default Python takes 0.005 s."""


class LargeMessages:
    """The thread that works on large messages, and the turns of accounts. For one event loop."""

    def __init__(self) -> None:
        # One thread, because each further one would take the interpreter from the event loop as often.
        self._executor = ThreadPoolExecutor(1, "large-messages")
        self._turns = Limiter("large messages in work", per_identity=1)

    @asynccontextmanager
    async def turn(self, account: str, size_bytes: int) -> AsyncIterator[None]:
        """Wait until no other large message of the account is in work; a smaller message need not wait."""
        if size_bytes <= LARGE_SIZE_BYTES:
            yield
            return
        async with self._turns.turn(account):
            yield

    async def work(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Return `function()`, which works on a message of this size."""
        if size_bytes <= LARGE_SIZE_BYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Drop work that has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)
