"""Schedules, and the pending steps: those that have a schedule and no plan yet."""

import time
from collections.abc import Sequence

from relibra.errors import Conflict, LimitExceeded, NotFound, StaleEpoch
from relibra.planning import Schedule
from relibra.planning.plan import Basis
from relibra.store.connection import Connected, raises_unavailable
from relibra.store.documents import decode_schedule, encode_schedule
from relibra.store.keys import JOBS, JobKeys
from relibra.store.records import DEFAULT_LIMITS, JobRecord, PendingStep, StoreLimits


class Schedules(Connected):
    """The schedules that trainer drivers submitted."""

    @raises_unavailable
    async def put_schedule(
        self,
        job: JobRecord,
        step: int,
        sequence_ids: Sequence[str],
        schedule: Schedule,
        limits: StoreLimits = DEFAULT_LIMITS,
        basis: Basis = Basis.REPLAY,
        traceparent: str = "",
    ) -> None:
        """Keep the schedule of a step and make the step pending; the same schedule again changes nothing.

        Raises:
            Conflict: the step has another schedule, or has expired.
            StaleEpoch: the job was re-created since `job` was read.
            LimitExceeded: too many steps of the job are pending.
        """
        keys, job_id = JobKeys(job.job_id), job.job_id
        outcome = await self._script(
            "put_schedule",
            [
                keys.of("job"),
                keys.step(step, "schedule"),
                *map(keys.of, ("pending", "steps", "open", "floor", "traces")),
            ],
            [
                f"{job.epoch:016x}",
                basis,
                encode_schedule(sequence_ids, schedule),
                step,
                time.time(),
                limits.max_open_steps,
                traceparent,
            ],
        )
        match outcome:
            case b"other":
                raise Conflict(f"step {step} of job {job_id!r} has another schedule; the first schedule stays")
            case b"expired":
                raise Conflict(f"step {step} of job {job_id!r} has expired: newer steps replaced it")
            case b"stale_epoch":
                raise StaleEpoch(f"job {job_id!r} was re-created; register it again")
            case b"full":
                raise LimitExceeded(
                    f"{limits.max_open_steps} steps of job {job_id!r} wait for their plans already (max_open_steps); "
                    "fetch those plans first"
                )

    @raises_unavailable
    async def get_schedule(self, job_id: str, step: int) -> tuple[list[str], Schedule, Basis]:
        """Return the sequence ids, the schedule and the basis of a step.

        Raises:
            NotFound: the step has no schedule.
        """
        basis, document = await self._redis.hmget(JobKeys(job_id).step(step, "schedule"), "basis", "document")
        if document is None:
            raise NotFound(f"step {step} of job {job_id!r} has no schedule")
        sequence_ids, schedule = decode_schedule(document)
        return sequence_ids, schedule, Basis(basis.decode())

    @raises_unavailable
    async def pending_steps(self) -> list[PendingStep]:
        """Return the pending steps of all jobs; the step that waits longest comes first."""
        job_ids = sorted(each.decode() for each in await self._redis.smembers(JOBS))
        pipe = self._redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipe.zrange(JobKeys(job_id).of("pending"), 0, -1, withscores=True)
        found = [
            PendingStep(job_id=job_id, step=int(step), submitted_at=submitted_at)
            for job_id, steps in zip(job_ids, await pipe.execute() if job_ids else [], strict=True)
            for step, submitted_at in steps
        ]
        return sorted(found, key=lambda each: (each.submitted_at, each.job_id, each.step))
