"""How the newest packing of an attempt ended, kept so that the status service can say whether a job packs (S9)."""

import json
import time
from dataclasses import asdict

from relibra.store.connection import Connected, raises_unavailable
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import PackingNote

_MAX_TEXT_LENGTH = 500


class Packings(Connected):
    """The newest packing that a driver asked for. The packing itself is not kept."""

    @raises_unavailable
    async def note_packing(self, job: AttemptId, step: int, text: str, *, is_packed: bool) -> None:
        """Keep how a packing ended, in place of the one before. An attempt that is over keeps nothing."""
        note = PackingNote(step=step, is_packed=is_packed, text=text[:_MAX_TEXT_LENGTH], at=time.time())
        keys = AttemptKeys.of_attempt(job)
        await self._script(
            "note_packing",
            [keys.job.of("job"), keys.of("packing")],
            [f"{job.epoch:016x}", json.dumps(asdict(note))],
        )

    @raises_unavailable
    async def get_packing(self, job: AttemptId) -> PackingNote | None:
        """Return how the newest packing ended; None if no driver of the attempt asked for one."""
        note = await self._redis.get(AttemptKeys.of_attempt(job).of("packing"))
        return None if note is None else PackingNote(**json.loads(note))
