"""How fast callers beyond a limit on open calls are refused (S6).

A client that calls again as soon as it is refused would otherwise keep the planner busy with refusals: ending a call,
and beginning the one that replaces it, takes about half a millisecond of the event loop.
"""

import asyncio
import time

from relibra.errors import TooManyCalls
from relibra.planner.limits.limiter import Limiter
from relibra.planner.plan_notifier import wait_until_set

LIMITS_OF_CALLS = frozenset({"calls", "max_calls_per_job", "max_streams_per_job", "health_watches"})
"""The limits on calls that are open at the same time."""
REFUSALS_PER_S = 100
"""How many calls of one job are refused per second; the first ones of a second at once."""
MAX_DELAY_S = 20.0
MAX_WAITING = 16_384
"""How many calls may wait for their refusal, because each of them takes memory; further ones are refused at once."""
REFUSED_WITHIN = 0.8
"""A caller with a deadline is refused within this part of the time that remains, or it would not learn why."""


class Refusals:
    """The calls of one planner that wait for their refusal. For one event loop."""

    def __init__(self) -> None:
        self._limiter = Limiter(
            "refused calls", total=MAX_WAITING, rate_per_s=REFUSALS_PER_S, burst_s=0.1, max_delay_s=MAX_DELAY_S
        )
        self._draining = asyncio.Event()

    def __len__(self) -> int:
        return len(self._limiter)

    async def wait(self, job_id: str, remaining_s: float | None) -> None:
        """Wait until a call of a job may be refused; a planner that drains does not wait.

        Args:
            job_id: the job that the caller belongs to, empty or `ALL_JOBS` if it belongs to none.
            remaining_s: how long the caller still waits for an answer; None without a deadline.
        """
        delay_s = self._limiter.delay_s(job_id, 1, time.monotonic())
        if remaining_s is not None:
            delay_s = min(delay_s, max(remaining_s, 0.0) * REFUSED_WITHIN)
        try:
            with self._limiter.hold(job_id):
                await wait_until_set(self._draining, delay_s)
        except TooManyCalls:
            return

    def drain(self) -> None:
        """Refuse at once the calls that wait for their refusal."""
        self._draining.set()
