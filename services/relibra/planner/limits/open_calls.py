"""How many calls are open at a planner, by account, and how many of them are receiving their message (S6).

An account is a job, or one connection of a caller that may act for all jobs. An account that takes all it can get takes
nothing from the others: if the planner is full, each account may still open its share.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from relibra.errors import TooManyCalls, Unavailable
from relibra.planner.plan_notifier import ShuttingDown, wait_until_set

MAX_CALLS = 8192
"""Open calls of all accounts together; an agent that waits for its plan is an open call."""
NUM_RECEIVING = 64
"""How many calls of one account receive their message at the same time; the messages of others wait at the sender."""
NUM_RECEIVING_PARTS = 4
"""The same for messages that come in parts, which are larger."""
MESSAGE_TIMEOUT_S = 10.0
"""How long the message of a call may take at least, from the headers of the call to the end of the message.

Each call gets up to twice as long, another time than the calls before it. Thousands of calls that began at once would
otherwise end at once, and be begun again at once.
"""
LIMITS_OF_CALLS = frozenset({"calls", "max_calls_per_job", "max_streams_per_job", "health_watches"})
"""The limits on calls that are open at the same time."""
REFUSAL_DELAY_S = 2.5
"""How long a planner takes at least to answer a call beyond such a limit; each call waits another time, up to twice."""
ENDED_PER_S = 100
"""How many calls of one job a planner refuses per second, and of how many it ends the wait for their message.

Ending a call, and beginning the one that replaces it, takes about half a millisecond of the event loop. Where thousands
of calls wait, each waits longer, and yet no longer than `MAX_DELAY_S` and up to twice as long.
"""
MAX_DELAY_S = 20.0
REFUSED_WITHIN = 0.8
"""A caller that has set a deadline is refused within this part of the time that remains, or it would not learn why."""
DRAIN_MESSAGE_S = 1.0
"""How long the messages of open calls may still take once the planner drains."""
_MAX_REFUSED = 2 * MAX_CALLS
"""How many calls may wait for a late refusal, because each of them takes memory; further ones are refused sooner."""
_GOLDEN_RATIO = 0.618033988749895


@dataclass
class _Turns:
    """The turns of one account to receive a message."""

    free: asyncio.Semaphore
    num_calls: int = 0
    """How many calls receive their message or wait for their turn."""


class MessageTimeout(Unavailable):
    """The message of a call took too long. The cause may be the planner or the network, so the caller may try again."""

    limit = "message_timeout"


class OpenCalls:
    """The open calls of one planner. For one event loop."""

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self._max_calls = max_calls
        self._num_calls: Counter[str] = Counter()
        self._num_all = 0
        self._num_refused: Counter[str] = Counter()
        self._receiving: dict[str, _Turns] = {}
        self._num_spread = 0
        self._draining = asyncio.Event()
        self._unread: set[asyncio.Timeout] = set()
        """The deadlines of calls that receive their message or wait for their turn."""

    def __len__(self) -> int:
        return self._num_all

    @contextmanager
    def open(self, account: str, limit: int | None) -> Iterator[None]:
        """Count a call or stream of an account for as long as it is open.

        Args:
            account: who calls.
            limit: how many calls the account may have open; None if only the limit of the planner holds.

        Raises:
            TooManyCalls: the account has too many open calls.
        """
        num_calls = self._num_calls[account]
        if limit is not None and num_calls >= limit:
            raise TooManyCalls(
                f"job {account!r} has {limit} calls and streams open at this planner (max_calls_per_job); end some, or "
                "raise the limit",
                limit="max_calls_per_job",
            )
        num_accounts = len(self._num_calls) + (not num_calls)
        share = self._max_calls // num_accounts
        if self._num_all >= self._max_calls and num_calls >= share:
            raise TooManyCalls(
                f"this planner has {self._num_all} calls open, its limit; each of {num_accounts} callers may "
                f"open {share}, and this one has {num_calls}: call another planner, or add planners",
                limit="calls",
            )
        self._num_calls[account] += 1
        self._num_all += 1
        try:
            yield
        finally:
            self._num_all -= 1
            self._num_calls[account] -= 1
            if not self._num_calls[account]:
                del self._num_calls[account]

    def drain(self, message_timeout_s: float = DRAIN_MESSAGE_S) -> None:
        """Refuse at once the calls that wait for their refusal, and soon those whose message does not arrive."""
        self._draining.set()
        until = asyncio.get_running_loop().time() + message_timeout_s
        for deadline in self._unread:
            end = deadline.when()
            # A deadline that is None belongs to a message that has arrived, and is answered.
            if end is not None and end > until and not deadline.expired():
                deadline.reschedule(until)

    def _paced_s(self, least_s: float, num_waiting: int, remaining_s: float | None = None) -> float:
        """Return how long one of so many calls waits: from `least_s`, or longer, to twice that; each another time.

        A call whose caller waits for `remaining_s` at most waits for up to `REFUSED_WITHIN` of that.
        """
        least_s = max(least_s, min(num_waiting / ENDED_PER_S, MAX_DELAY_S))
        if remaining_s is not None:
            least_s = min(least_s, max(remaining_s, 0.0) * REFUSED_WITHIN / 2)
        # Multiples of the golden ratio, without their whole part, are spread evenly (Weyl).
        self._num_spread += 1
        return least_s * (1 + self._num_spread * _GOLDEN_RATIO % 1)

    async def wait_to_refuse(self, job_id: str, remaining_s: float | None) -> None:
        """Wait before a call is refused, see `refusing`; a planner that drains does not wait."""
        with self.refusing(job_id, remaining_s) as delay_s:
            await wait_until_set(self._draining, delay_s)

    @contextmanager
    def refusing(self, job_id: str, remaining_s: float | None = None) -> Iterator[float]:
        """Count a call of a job that waits for its refusal; yields how long it must wait.

        Args:
            job_id: the job that the caller belongs to, empty or `ALL_JOBS` if it belongs to none.
            remaining_s: how long the caller still waits for an answer; None without a deadline.
        """
        self._num_refused[job_id] += 1
        is_paced = self._num_refused.total() <= _MAX_REFUSED
        try:
            yield self._paced_s(REFUSAL_DELAY_S, self._num_refused[job_id] if is_paced else 0, remaining_s)
        finally:
            self._num_refused[job_id] -= 1
            if not self._num_refused[job_id]:
                del self._num_refused[job_id]

    @asynccontextmanager
    async def receiving(
        self, account: str, timeout_s: float | None = None, num_turns: int = NUM_RECEIVING
    ) -> AsyncIterator[asyncio.Timeout]:
        """Wait until the account may receive one more message; limit the time of waiting and receiving together.

        Move the deadline that this yields once the message is there.

        Until a call asks for its message, flow control keeps all but the beginning of the message at the sender.

        Raises:
            MessageTimeout: the time is up.
            ShuttingDown: the planner drains, and the message did not arrive soon.
        """
        turns = self._receiving.setdefault(account, _Turns(asyncio.Semaphore(num_turns)))
        turns.num_calls += 1
        if timeout_s is None:
            timeout_s = self._paced_s(MESSAGE_TIMEOUT_S, turns.num_calls)
        if self._draining.is_set():
            timeout_s = min(timeout_s, DRAIN_MESSAGE_S)
        deadline = asyncio.timeout(timeout_s)
        self._unread.add(deadline)
        try:
            async with deadline, turns.free:
                yield deadline
        except TimeoutError:
            if self._draining.is_set():
                raise ShuttingDown("the planner is shutting down, and the message did not arrive; ask again") from None
            raise MessageTimeout(
                f"the message of the call did not arrive within {timeout_s:.3g} s; send it with the call, and try again"
            ) from None
        finally:
            self._unread.discard(deadline)
            # Calls for the health of the planner are received without being counted in `open`.
            turns.num_calls -= 1
            if not turns.num_calls:
                del self._receiving[account]
