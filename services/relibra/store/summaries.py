"""The summaries of expired steps, which stay as long as the attempt is known."""

from collections.abc import Sequence

from relibra.store.connection import Connected, raises_unavailable
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.step_summary import StepSummary, decode_summary

SUMMARY_SIZE_BYTES = 700
"""What a summary takes in Redis, with its place in a sorted set."""


class Summaries(Connected):
    """Reads what is left of expired steps."""

    @raises_unavailable
    async def get_summary(self, attempt: AttemptId, step: int) -> StepSummary | None:
        """Return the summary of an expired step; None if the step is not expired or was never there."""
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        found = await self._redis.zrangebyscore(key, step, step)
        return decode_summary(found[0]) if found else None

    @raises_unavailable
    async def list_summaries(
        self, attempt: AttemptId, *, limit: int = 100, before: int | None = None
    ) -> list[StepSummary]:
        """Return the last `limit` expired steps, newest first; only steps below `before` if it is given."""
        highest = "+inf" if before is None else f"({before}"
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        found = await self._redis.zrevrangebyscore(key, highest, "-inf", start=0, num=limit)
        return [decode_summary(each) for each in found]

    @raises_unavailable
    async def summaries_after(self, attempt: AttemptId, step: int, *, limit: int) -> list[StepSummary]:
        """Return the first `limit` expired steps above `step`, oldest first."""
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        found = await self._redis.zrangebyscore(key, f"({step}", "+inf", start=0, num=limit)
        return [decode_summary(each) for each in found]

    @raises_unavailable
    async def count_summaries(self, attempt: AttemptId, last_step: int) -> int:
        """Return how many steps up to `last_step` have expired."""
        return int(await self._redis.zcount(AttemptKeys.of_attempt(attempt).of("summaries"), "-inf", last_step))

    @raises_unavailable
    async def sample_summaries(self, attempt: AttemptId, num: int) -> list[StepSummary]:
        """Return `num` expired steps from first to last, evenly spaced and newest first; all if there are no more."""
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        total = int(await self._redis.zcard(key))
        if total <= num:
            return await self.list_summaries(attempt, limit=num)
        pipe = self._redis.pipeline(transaction=False)
        for index in range(num):
            position = index * (total - 1) // max(1, num - 1)
            pipe.zrevrange(key, position, position)
        # A step that is gone meanwhile leaves a gap.
        return [decode_summary(found[0]) for found in await pipe.execute() if found]

    @raises_unavailable
    async def measure_summaries(self, attempts: Sequence[AttemptId]) -> list[int]:
        """Return about how many bytes the summaries of each of some attempts take in Redis."""
        pipe = self._redis.pipeline(transaction=False)
        for attempt in attempts:
            pipe.zcard(AttemptKeys.of_attempt(attempt).of("summaries"))
        return [SUMMARY_SIZE_BYTES * int(number) for number in await pipe.execute()] if attempts else []

    @raises_unavailable
    async def drop_summaries(self, attempt: AttemptId) -> None:
        """Remove the summaries of an attempt that is over."""
        await self._redis.unlink(AttemptKeys.of_attempt(attempt).of("summaries"))

    @raises_unavailable
    async def num_kept_steps(self, attempt: AttemptId) -> int:
        """Return how many steps of an attempt keep their full data."""
        return int(await self._redis.zcard(AttemptKeys.of_attempt(attempt).of("steps")))
