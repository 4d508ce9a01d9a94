"""Calls whose message is on its way: how many an account has, and how long each of them may take (S6, S7)."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from relibra.errors import Unavailable
from relibra.planner.limits.limiter import Limiter
from relibra.planner.plan_notifier import ShuttingDown

NUM_RECEIVING = 64
"""How many calls of one account receive their message at the same time; the messages of others wait at the sender."""
NUM_RECEIVING_PARTS = 4
"""The same number for messages that come in parts, which are larger."""
MESSAGE_TIMEOUT_S = 10.0
"""The shortest time for a call, from its headers to the end of its message. A call gets up to twice this time, at
random, so that thousands of calls that began together neither end together nor come back together."""
DRAIN_MESSAGE_S = 1.0
"""How long the messages of open calls may still take once the planner drains."""


class MessageTimeout(Unavailable):
    """The message of a call took too long. The cause may be the planner or the network, so the caller may try again."""

    limit = "message_timeout"


class Receiving:
    """The calls of one planner whose message has not arrived. For one event loop."""

    def __init__(self) -> None:
        self._whole = Limiter("messages on their way", per_identity=NUM_RECEIVING)
        self._in_parts = Limiter("messages in parts on their way", per_identity=NUM_RECEIVING_PARTS)
        self._is_draining = False
        self._deadlines: set[asyncio.Timeout] = set()

    @asynccontextmanager
    async def turn(
        self, account: str, *, is_in_parts: bool = False, timeout_s: float | None = None
    ) -> AsyncIterator[asyncio.Timeout]:
        """Wait until the account may receive one more message; limit the time of waiting and receiving together.

        Reschedule the deadline that this yields once the message is there. Until a call asks for its message, flow
        control keeps all but the beginning of the message at the sender.

        Raises:
            MessageTimeout: the time is up.
            ShuttingDown: the planner drains, and the message did not arrive soon.
        """
        if timeout_s is None:
            timeout_s = MESSAGE_TIMEOUT_S * random.uniform(1, 2)
        if self._is_draining:
            timeout_s = min(timeout_s, DRAIN_MESSAGE_S)
        deadline = asyncio.timeout(timeout_s)
        self._deadlines.add(deadline)
        try:
            async with deadline, (self._in_parts if is_in_parts else self._whole).turn(account):
                yield deadline
        except TimeoutError:
            if self._is_draining:
                raise ShuttingDown("the planner is shutting down, and the message did not arrive; ask again") from None
            raise MessageTimeout(
                f"the message of the call did not arrive within {timeout_s:.3g} s; send it with the call, and try again"
            ) from None
        finally:
            self._deadlines.discard(deadline)

    def drain(self, message_timeout_s: float = DRAIN_MESSAGE_S) -> None:
        """End soon the calls whose message does not arrive."""
        self._is_draining = True
        until = asyncio.get_running_loop().time() + message_timeout_s
        for deadline in self._deadlines:
            end = deadline.when()
            # A deadline that is None belongs to a message that has arrived, and is answered.
            if end is not None and end > until and not deadline.expired():
                deadline.reschedule(until)
