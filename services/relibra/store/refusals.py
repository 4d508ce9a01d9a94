"""What the planner refused of an attempt, kept so that the status service can say why the job is not balanced (S9)."""

import json
import time

from relibra.errors import RelibraError
from relibra.store.connection import Connected, raises_unavailable
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import Refusal, Refused

_MAX_TEXT_LENGTH = 500


class Refusals(Connected):
    """The newest refusal of each kind since a schedule of the job was last accepted."""

    @raises_unavailable
    async def note_refusal(self, job: AttemptId, what: Refused, step: int, error: RelibraError) -> None:
        """Keep a refusal, in place of the one of its kind before; the first step refused stays known.

        An attempt that is over keeps nothing, because its keys would never be removed.
        """
        newest = {"step": step, "error": type(error).__name__, "text": str(error)[:_MAX_TEXT_LENGTH], "at": time.time()}
        keys = AttemptKeys.of_attempt(job)
        await self._script(
            "note_refusal",
            [keys.job.of("job"), keys.of("refusals")],
            [f"{job.epoch:016x}", what, step, json.dumps(newest)],
        )

    @raises_unavailable
    async def forget_refusals(self, job: AttemptId) -> None:
        """Forget all refusals: a schedule was accepted, so the job is planned again."""
        await self._redis.unlink(AttemptKeys.of_attempt(job).of("refusals"))

    @raises_unavailable
    async def get_refusals(self, job: AttemptId) -> list[Refusal]:
        """Return the newest refusal of each kind, in the order of `Refused`."""
        found = await self._redis.hgetall(AttemptKeys.of_attempt(job).of("refusals"))
        return [
            Refusal(what=what, since_step=int(since), **json.loads(newest))
            for what in Refused
            if (newest := found.get(what.encode())) and (since := found.get(f"{what}/since".encode()))
        ]
