"""Schedules, and the pending steps: those that have a schedule and no plan yet."""

import asyncio
import time
from collections.abc import Sequence

from relibra.errors import Conflict, LimitExceeded, NotFound
from relibra.planning import Schedule
from relibra.planning.plan import Level
from relibra.store.attempts import Attempts
from relibra.store.connection import raises_unavailable
from relibra.store.documents import decode_schedule, encode_schedule
from relibra.store.keys import JOBS, AttemptId, AttemptKeys, JobKeys
from relibra.store.records import DEFAULT_LIMITS, JobRecord, PendingStep, StoreLimits
from relibra.store.rollbacks import way_back
from relibra.store.seal import seal, unseal

_LARGE_NUM_SEQUENCES = 4096
"""Encoding larger schedules takes more than a few milliseconds, in which an event loop could do nothing else."""
_STEPS_PER_LOOK = 8
"""How many steps one look reads, the newest first. At most one step is planned from history and not begun."""


class Schedules(Attempts):
    """The schedules that trainer drivers submitted."""

    @raises_unavailable
    async def put_schedule(
        self,
        job: JobRecord,
        step: int,
        sequence_ids: Sequence[str],
        schedule: Schedule | None,
        limits: StoreLimits = DEFAULT_LIMITS,
    ) -> None:
        """Keep the schedule of a step and make the step pending; the same schedule again changes nothing.

        Without a schedule, only the sequences of the step are known. A schedule with micro-batches replaces that, and
        the plan that was made of it.

        Raises:
            Conflict: the step has another schedule that says as much, or has expired.
            StaleEpoch: the attempt of `job` is over.
            LimitExceeded: too many steps of the job are pending.
        """
        keys, job_id = AttemptKeys.of_attempt(job), job.job_id
        level = Level.STEP if schedule is None else Level.MICRO_BATCHES

        def encode() -> bytes:
            return seal(encode_schedule(sequence_ids, schedule))

        document = await asyncio.to_thread(encode) if len(sequence_ids) > _LARGE_NUM_SEQUENCES else encode()
        outcome = await self._script(
            "put_schedule",
            [
                keys.job.of("job"),
                keys.step(step, "schedule"),
                *map(keys.of, ("pending", "steps", "open", "floor", "sizes")),
                keys.step(step, "plan"),
                keys.of("plans"),
                keys.step(step, "failure"),
            ],
            [
                f"{job.epoch:016x}",
                level,
                document,
                step,
                time.time(),
                limits.max_open_steps,
                "".join(f" {lower} " for lower in Level if lower < level),
            ],
        )
        match outcome:
            case b"other":
                raise Conflict(
                    f"step {step} of job {job_id!r} has another schedule in this attempt; the first schedule stays; "
                    + way_back(job_id, step)
                )
            case b"expired":
                raise Conflict(
                    f"step {step} of job {job_id!r} has expired: newer steps replaced it; " + way_back(job_id, step)
                )
            case b"stale_epoch":
                raise await self.over(job_id, job.epoch)
            case b"full":
                raise LimitExceeded(
                    f"{limits.max_open_steps} steps of job {job_id!r} wait for their plans already (max_open_steps); "
                    "fetch those plans first",
                    limit="max_open_steps",
                )

    @raises_unavailable
    async def next_step(self, attempt: AttemptId) -> int:
        """Return the step after all that were scheduled, that have sequences, or that ranks have reported."""
        keys = AttemptKeys.of_attempt(attempt)
        steps = [int(step) for step in await self._redis.zrevrange(keys.of("steps"), 0, _STEPS_PER_LOOK - 1)]
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hget(keys.step(step, "schedule"), "level")
            pipe.exists(keys.step(step, "counts"), keys.step(step, "reported"))
        answers = await pipe.execute() if steps else []
        for step, level, has_begun in zip(steps, answers[::2], answers[1::2], strict=True):
            # A step that is only planned from history has not begun.
            if has_begun or (level is not None and Level(level.decode()) > Level.HISTORY):
                return step + 1
        floor = int(await self._redis.get(keys.of("floor")) or 0)
        back_to = [each.rolled_back_to or 0 for each in await self.list_attempts(attempt.job_id)]
        return max(floor, *back_to[:1])

    @raises_unavailable
    async def get_schedule(self, attempt: AttemptId, step: int) -> tuple[list[str], Schedule | None, Level]:
        """Return the sequence ids, the schedule and the level of a step.

        At level history there are no sequences, and no schedule at level step.

        Raises:
            NotFound: the step has no schedule and is not planned from history.
            Corrupt: the schedule is not the one that was stored.
        """
        level, document = await self._redis.hmget(
            AttemptKeys.of_attempt(attempt).step(step, "schedule"), "level", "document"
        )
        if level is None:
            raise NotFound(f"step {step} of job {attempt.job_id!r} has no schedule")
        if document is None:
            return [], None, Level(level.decode())
        what = f"the schedule of step {step} of job {attempt.job_id!r}"
        sequence_ids, schedule = decode_schedule(unseal(document, what))
        return sequence_ids, schedule, Level(level.decode())

    @raises_unavailable
    async def pending_steps(self) -> list[PendingStep]:
        """Return the pending steps of the current attempts of all jobs; the step that waits longest comes first."""
        epochs = await self.current_epochs(job_id.decode() for job_id in await self._redis.smembers(JOBS))
        pipe = self._redis.pipeline(transaction=False)
        for job_id, epoch in epochs.items():
            pipe.exists(JobKeys(job_id).of("lease"))
            pipe.zrange(JobKeys(job_id).attempt(epoch).of("pending"), 0, -1, withscores=True)
        answers = await pipe.execute() if epochs else []
        pending_steps = [
            PendingStep(job_id=job_id, step=int(step), submitted_at=submitted_at, is_leased=bool(is_leased))
            for job_id, is_leased, steps in zip(epochs, answers[::2], answers[1::2], strict=True)
            for step, submitted_at in steps
        ]
        return sorted(pending_steps, key=lambda pending: (pending.submitted_at, pending.job_id, pending.step))
