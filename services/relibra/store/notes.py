"""What pages must say of an attempt: what the planner refused of it, and how far its newest packing has come (S9)."""

import json
import time
from dataclasses import asdict

from relibra.errors import RelibraError
from relibra.store.connection import Connected
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import PackingNote, PackingState, Refusal, Refused

_MAX_TEXT_LENGTH = 500


class Notes(Connected):
    """The newest refusal of each kind since a schedule was last accepted, and the newest packing.

    An attempt that is over keeps neither, because its keys would never be removed.
    """

    async def note_refusal(self, job: AttemptId, what: Refused, step: int, error: RelibraError) -> None:
        """Keep a refusal, in place of the one of its kind before; the first step refused stays known."""
        newest = {"step": step, "error": type(error).__name__, "text": str(error)[:_MAX_TEXT_LENGTH], "at": time.time()}
        keys = AttemptKeys.of_attempt(job)
        await self._script(
            "note_refusal",
            [keys.job.of("job"), keys.of("refusals")],
            [f"{job.epoch:016x}", what, step, json.dumps(newest)],
        )

    async def forget_refusals(self, job: AttemptId) -> None:
        """Forget all refusals: a schedule was accepted, so the job is planned again."""
        await self._redis.unlink(AttemptKeys.of_attempt(job).of("refusals"))

    async def get_refusals(self, job: AttemptId) -> list[Refusal]:
        """Return the newest refusal of each kind, in the order of `Refused`."""
        notes = await self._redis.hgetall(AttemptKeys.of_attempt(job).of("refusals"))
        return [
            Refusal(what=what, since_step=int(since), **json.loads(newest))
            for what in Refused
            if (newest := notes.get(what.encode())) and (since := notes.get(f"{what}/since".encode()))
        ]

    async def note_packing(self, job: AttemptId, step: int, state: PackingState, text: str = "") -> None:
        """Keep how far a packing has come, in place of the one before."""
        note = PackingNote(step=step, state=state, text=text[:_MAX_TEXT_LENGTH], at=time.time())
        keys = AttemptKeys.of_attempt(job)
        await self._script(
            "note_packing",
            [keys.job.of("job"), keys.of("packing")],
            [f"{job.epoch:016x}", json.dumps(asdict(note))],
        )

    async def get_packing(self, job: AttemptId) -> PackingNote | None:
        """Return how far the newest packing has come; None if no driver of the attempt asked for one."""
        note = await self._redis.get(AttemptKeys.of_attempt(job).of("packing"))
        if note is None:
            return None
        fields = json.loads(note)
        return PackingNote(**fields | {"state": PackingState(fields["state"])})
