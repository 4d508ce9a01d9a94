"""Schedules, and the pending steps: those that have a schedule and no plan yet."""

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from relibra.errors import Conflict, Corrupt, LimitExceeded, NotFound
from relibra.planning import Schedule
from relibra.planning.plan import Level
from relibra.store.attempts import Attempts
from relibra.store.connection import sound
from relibra.store.documents import decode_schedule, encode_schedule, reading
from relibra.store.keys import AttemptId, AttemptKeys, JobKeys
from relibra.store.records import DEFAULT_LIMITS, JobRecord, PendingStep, StoreLimits
from relibra.store.rollbacks import way_back
from relibra.store.seal import seal, unseal

_LARGE_NUM_SEQUENCES = 4096
"""Encoding larger schedules takes more than a few milliseconds, in which an event loop could do nothing else."""
_STEPS_PER_LOOK = 8
"""How many steps one look reads, the newest first. At most one step is planned from history and not begun."""


class Schedules(Attempts):
    """The schedules that trainer drivers submitted."""

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

    async def next_step(self, attempt: AttemptId) -> int:
        """Return the step after all that were scheduled, that have sequences, or that ranks have reported."""
        keys = AttemptKeys.of_attempt(attempt)
        steps = [int(step) for step in await self._redis.zrevrange(keys.of("steps"), 0, _STEPS_PER_LOOK - 1)]
        answers = await self._answers(
            question
            for step in steps
            for question in (
                ("hget", keys.step(step, "schedule"), "level"),
                ("exists", keys.step(step, "counts"), keys.step(step, "reported")),
            )
        )
        for step, level, has_begun in zip(steps, answers[::2], answers[1::2], strict=True):
            # A step that is only planned from history has not begun.
            if has_begun or (level is not None and Level(level.decode()) > Level.HISTORY):
                return step + 1
        floor = int(await self._redis.get(keys.of("floor")) or 0)
        back_to = [each.rolled_back_to or 0 for each in await self.list_attempts(attempt.job_id)]
        return max(floor, *back_to[:1])

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

    async def pending_steps(
        self, job_ids: Collection[str] | None = None
    ) -> tuple[list[PendingStep], dict[str, Corrupt]]:
        """Return the pending steps of the current attempts of jobs; the step that waits longest comes first.

        Args:
            job_ids: the jobs; all by default.

        Returns:
            The steps, and the jobs that may have others, because they cannot be read; each with the reason.
        """
        ids = await self.job_ids() if job_ids is None else list(job_ids)
        epochs = await self._answers_or_faults(("hget", JobKeys(job_id).of("job"), "epoch") for job_id in ids)
        broken: dict[str, Corrupt] = {}
        keys: dict[str, AttemptKeys] = {}
        for job_id, epoch in zip(ids, epochs, strict=True):
            with _setting_aside(job_id, JobKeys(job_id).of("job"), broken):
                if sound(epoch) is not None:
                    keys[job_id] = JobKeys(job_id).attempt(int(epoch, 16))
        answers = iter(
            await self._answers_or_faults(
                question
                for current in keys.values()
                for question in (
                    ("exists", current.job.of("lease")),
                    ("zrange", current.of("pending"), 0, -1, False, True),
                )
            )
        )
        pending: list[PendingStep] = []
        for job_id, current in keys.items():
            is_leased, steps = bool(next(answers)), next(answers)
            with _setting_aside(job_id, current.of("pending"), broken):
                pending += [
                    PendingStep(job_id=job_id, step=int(step), submitted_at=submitted_at, is_leased=is_leased)
                    for step, submitted_at in sound(steps)
                ]
        return sorted(pending, key=lambda step: (step.submitted_at, step.job_id, step.step)), broken


@contextmanager
def _setting_aside(job_id: str, key: str, broken: dict[str, Corrupt]) -> Iterator[None]:
    """Note a job with a key that the body cannot read, and go on after the body."""
    try:
        with reading(f"key {key}"):
            yield
    except Corrupt as error:
        broken[job_id] = error
