"""Leases: one planner at a time solves for a job, and a planner that lost its lease cannot publish (S4)."""

from relibra.errors import LostLease
from relibra.store.connection import Connected
from relibra.store.documents import reading
from relibra.store.keys import AttemptKeys, JobKeys
from relibra.store.records import Lease


class Leases(Connected):
    """The leases on solving, one per job.

    A lease ends by itself when its holder no longer renews it; only the clock of Redis decides. The fencing token rises
    with every lease of a job, and `publish_plan` and `end_solve` compare it inside Redis.
    """

    async def take_lease(self, job_id: str, lease_s: float) -> Lease | None:
        """Lease the longest waiting step of a job's current attempt.

        Returns:
            The lease; None if nothing waits, another planner has the lease, or another attempt began just now.
        """
        job = JobKeys(job_id)
        (current,) = await self._answers([("hget", job.of("job"), "epoch")])
        if current is None:
            return None
        with reading(f"key {job.of('job')}"):
            keys = job.attempt(int(current, 16))
        taken = await self._script(
            "take_lease",
            [*map(keys.job.of, ("job", "lease", "fence")), keys.of("pending")],
            [int(lease_s * 1000), current],
        )
        if not taken:
            return None
        token, step, epoch = taken
        with reading(f"key {keys.of('pending')}"):
            return Lease(job_id=job_id, step=int(step), epoch=int(epoch, 16), token=token)

    async def renew_lease(self, lease: Lease, lease_s: float) -> None:
        """Renew a lease: it ends `lease_s` from now.

        Raises:
            LostLease: the lease had ended.
        """
        if not await self._keep(lease, lease_s):
            raise LostLease(f"the lease on step {lease.step} of job {lease.job_id!r} ended before it was renewed")

    async def return_lease(self, lease: Lease) -> None:
        """End a lease early, so that another planner need not wait for its end."""
        await self._keep(lease, 0)

    async def _keep(self, lease: Lease, lease_s: float) -> bool:
        key = JobKeys(lease.job_id).of("lease")
        return bool(await self._script("keep_lease", [key], [lease.token, int(lease_s * 1000)]))

    async def end_solve(self, lease: Lease, reason: str, *, max_crashes: int = 0) -> bool:
        """Record that the leased step could not be planned, and end the lease.

        Args:
            lease: the lease of the solve.
            reason: why the step could not be planned, for people.
            max_crashes: the step fails for good at this many calls, and is tried again before; 0 fails it at once.

        Returns:
            Whether the step failed for good.

        Raises:
            LostLease: the lease had ended; nothing was changed.
        """
        keys = AttemptKeys.of_attempt(lease)
        outcome = await self._script(
            "end_solve",
            [
                *map(keys.job.of, ("job", "lease")),
                *map(keys.of, ("pending", "open")),
                keys.step(lease.step, "failure"),
                keys.of("crashes"),
            ],
            [lease.token, f"{lease.epoch:016x}", lease.step, reason, max_crashes],
        )
        if outcome == b"lost_lease":
            raise LostLease(f"the lease on step {lease.step} of job {lease.job_id!r} ended before its failure was kept")
        return bool(outcome == b"failed")
