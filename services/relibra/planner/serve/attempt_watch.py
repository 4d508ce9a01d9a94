"""Which attempt a call belongs to, and that the attempt is alive."""

import time

from relibra.errors import NotReady
from relibra.planning.launch import Launch
from relibra.store import JobRecord, Store
from relibra.wire.messages import check_launch_text

SEEN_INTERVAL_S = 1.0
"""How often this planner notes in the store that an attempt is alive."""
_MAX_SEEN = 1024


class AttemptWatch:
    """Reads the job of a call, refuses calls of attempts that are over, and notes who is alive.

    Only calls of a trainer that name their attempt show that the attempt is alive. Rollout workers often outlive the
    trainer, and a process that does not name its attempt may belong to a launch that waits for its turn.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen_at: dict[tuple[str, bool], tuple[int, float]] = {}

    async def job(
        self, job_id: str, epoch: int, token: str = "", *, is_driver: bool = False, is_trainer: bool = True
    ) -> JobRecord:
        """Return the job of a call.

        Args:
            job_id: the job.
            epoch: the attempt that the caller belongs to; 0 if it did not say, which means the current attempt.
            token: the token of the caller's launch, for a caller that does not know the epoch; empty without one.
            is_driver: whether only the process that registered the job makes this call.
            is_trainer: whether only trainers make this call; the call of a viewer shows nothing about the attempt.

        Raises:
            UnknownJob: the job was never registered.
            StaleEpoch: the caller's attempt is over.
            NotReady: the trainer with that token has not registered yet.
        """
        job = await self._store.get_job(job_id)
        if token and not epoch:
            token_hash = Launch(token=check_launch_text("token", token)).token_hash
            if not await self._store.has_begun(job, token_hash):
                raise NotReady(f"the trainer of this process has not registered job {job_id!r} yet")
            epoch = job.epoch
        if epoch:
            if epoch != job.epoch:
                raise await self._store.over(job_id, epoch)
            if is_trainer:
                await self.see(job_id, epoch, is_driver=is_driver)
        return job

    async def see(self, job_id: str, epoch: int, *, is_driver: bool = False) -> None:
        """Note that an attempt is alive, unless this planner noted it less than `SEEN_INTERVAL_S` ago."""
        now = time.monotonic()
        seen_epoch, seen_at = self._seen_at.get((job_id, is_driver), (0, 0.0))
        if seen_epoch == epoch and now - seen_at < SEEN_INTERVAL_S:
            return
        if len(self._seen_at) >= _MAX_SEEN:
            self._seen_at = {each: seen for each, seen in self._seen_at.items() if now - seen[1] < SEEN_INTERVAL_S}
        self._seen_at[job_id, is_driver] = epoch, now
        await self._store.see(job_id, epoch, is_driver=is_driver)
