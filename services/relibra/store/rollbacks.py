"""Going back to an earlier step within one launch of a training."""

import logging
import time

from relibra.errors import Corrupt
from relibra.store.documents import plan_of
from relibra.store.jobs import Jobs
from relibra.store.keys import AttemptKeys, JobKeys
from relibra.store.plans import Plans
from relibra.store.records import JobRecord
from relibra.store.reports import Reports
from relibra.store.seal import unseal

logger = logging.getLogger(__name__)


class Rollbacks(Jobs, Plans, Reports):
    """Jobs whose training loads an older checkpoint and goes on from there, without a restart."""

    async def rollback(self, job_id: str, epoch: int, step: int) -> JobRecord:
        """Let an attempt go back: `step` and all later steps may be reported, scheduled and planned anew.

        Another attempt of the same launch begins, without any steps. Those before stay with the attempt that went back,
        to which nothing is written any more. Versions of plans go on rising. The same call again changes nothing, so
        all processes of a launch may make it.

        Args:
            job_id: the job.
            epoch: the attempt that goes back.
            step: the first step that is sampled again.

        Returns:
            The job in its new attempt.

        Raises:
            UnknownJob: the job was never registered.
            StaleEpoch: the attempt is over.
        """
        await self.get_job(job_id)
        keys, before = JobKeys(job_id), JobKeys(job_id).attempt(epoch)
        word = b"changed"
        while word == b"changed":
            # Counted, or by the clock of Redis if that is ahead: an epoch that a failover lost does not come back.
            seconds, microseconds = await self._redis.time()
            last_epoch = int(await self._redis.get(keys.of("epoch")) or 0)
            new_epoch = max(last_epoch + 1, seconds * 1_000_000 + microseconds)
            after = keys.attempt(new_epoch)
            word = await self._script(
                "rollback",
                [
                    *map(keys.of, ("job", "epoch", "attempts", "lease")),
                    before.of("version"),
                    *map(after.of, ("version", "placement")),
                ],
                [
                    f"{epoch:016x}",
                    f"{new_epoch:016x}",
                    new_epoch,
                    step,
                    time.time(),
                    await self._present_placement(before),
                ],
            )
        if word == b"begun":
            await self._drop_old_attempts(job_id)
        job = await self.get_job(job_id)
        for attempt in (await self.list_attempts(job_id))[:1]:
            # Another attempt may have begun after this one.
            if (attempt.epoch, attempt.rolled_back_from, attempt.rolled_back_to) == (job.epoch, epoch, step):
                return job
        raise await self.over(job_id, epoch)

    async def _present_placement(self, keys: AttemptKeys) -> bytes:
        """Return the home ranks that the ranks of an attempt have, packed; empty if they have the plain placement.

        That is the placement of the last plan that a rank says it applied. If no rank has reported, it is that of the
        newest plan, and without a plan the one with which the attempt began.
        """
        planned = [int(step) for step in await self._redis.zrange(keys.of("plans"), 0, -1)]
        homes = [home for (home,) in await self._fields(keys, planned, ("home_rank",))]
        placements = dict(zip(planned, homes, strict=True))
        has_reports = False
        for step in sorted(planned, reverse=True):
            is_applied = await self.is_applied(keys, step)
            if is_applied:
                return _check(placements[step], plan_of(keys.job_id, step))
            has_reports = has_reports or is_applied is not None
        if planned and not has_reports:
            return _check(placements[planned[-1]], plan_of(keys.job_id, planned[-1]))
        return await self._redis.get(keys.of("placement")) or b""


def _check(placement: bytes | None, what: str) -> bytes:
    """Return a packed placement, or nothing if it is not the one that was stored.

    Going back is how a job gets away from a damaged plan, so the damage must not come along. Ranks move their experts
    from where they are, whatever the planner believes; a wrong belief costs more moves in one step.
    """
    try:
        if placement is not None:
            unseal(placement, f"field 'home_rank' of {what}")
        return placement or b""
    except Corrupt as error:
        logger.error("the next plan starts from the plain placement: %s", error)
        return b""


def way_back(job_id: str, step: int) -> str:
    """Say how a training that samples a step again has it planned again."""
    return (
        f"if the training went back to step {step}, call PlannerClient.rollback({job_id!r}, {step}) before anything of "
        f"the step is reported again, or run `relibra jobs rollback {job_id} {step}`"
    )
