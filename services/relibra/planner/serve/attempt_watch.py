"""Which attempt a call belongs to, and that the attempt is alive."""

import time

from relibra.errors import InvalidInput, RolledBack, StaleEpoch
from relibra.store import JobRecord, Refused, Store

SEEN_INTERVAL_S = 1.0
"""How often this planner notes in the store that an attempt is alive, or that one that is over still calls."""
_MAX_SEEN = 1024


class AttemptWatch:
    """Reads the job of a trainer's call, refuses calls of attempts that are over, and notes who is alive.

    Rollout workers often outlive the trainer, so their calls do not show that the attempt is alive.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._noted_at: dict[tuple[str, int], float] = {}

    async def job(self, job_id: str, epoch: int) -> JobRecord:
        """Return the job of a call.

        Args:
            job_id: the job.
            epoch: the attempt that the caller belongs to.

        Raises:
            InvalidInput: the call names no attempt.
            UnknownJob: the job was never registered.
            StaleEpoch: the caller's attempt is over.
        """
        job = await self._store.get_job(job_id)
        check_epoch(epoch)
        if epoch != job.epoch:
            error = await self._store.over(job_id, epoch)
            await self.note_older(job_id, epoch, error)
            raise error
        await self.see(job_id, epoch)
        return job

    async def see(self, job_id: str, epoch: int) -> None:
        """Note that an attempt is alive, unless this planner noted it less than `SEEN_INTERVAL_S` ago."""
        if self._is_due(job_id, epoch):
            await self._store.see(job_id, epoch)

    async def note_older(self, job_id: str, epoch: int, error: StaleEpoch) -> None:
        """Keep for the page of the job that a launch still calls whose attempt is over."""
        if not isinstance(error, RolledBack) and self._is_due(job_id, epoch):
            for job in (await self._store.get_jobs([job_id])).values():
                await self._store.note_refusal(
                    job, Refused.LAUNCH, 0, StaleEpoch(f"an older launch still calls: {error}")
                )

    def _is_due(self, job_id: str, epoch: int) -> bool:
        now = time.monotonic()
        if now - self._noted_at.get((job_id, epoch), -SEEN_INTERVAL_S) < SEEN_INTERVAL_S:
            return False
        if len(self._noted_at) >= _MAX_SEEN:
            self._noted_at = {key: at for key, at in self._noted_at.items() if now - at < SEEN_INTERVAL_S}
        self._noted_at[job_id, epoch] = now
        return True


def check_epoch(epoch: int) -> int:
    """Return the attempt that a call names, or refuse a call that names none.

    Raises:
        InvalidInput: it names none.
    """
    if not epoch:
        raise InvalidInput.of(
            "epoch", expected="the attempt of the caller, as RegisterJob or JoinAttempt returns it", got="none"
        )
    return epoch
