"""The state of each step whose full data is kept."""

from collections.abc import Iterable, Sequence
from typing import Any

from relibra.errors import Corrupt, NotFound
from relibra.planning.plan import Level
from relibra.store.connection import Connected
from relibra.store.documents import RECORD_FIELDS, decode_plan_record, reading
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import StepRecord

_ANSWERS_PER_STEP = 7


class Steps(Connected):
    """The steps of a job, from their first sequence until they expire."""

    async def list_steps(self, attempt: AttemptId, *, limit: int = 100, before: int | None = None) -> list[StepRecord]:
        """Return the last `limit` steps that have data, newest first; only steps below `before` if it is given."""
        highest = "+inf" if before is None else f"({before}"
        key = AttemptKeys.of_attempt(attempt).of("steps")
        steps = await self._redis.zrevrangebyscore(key, highest, "-inf", start=0, num=limit)
        # A step that expired since its number was read has no data left to be listed.
        return [record for record, is_kept in await self._states(attempt, map(int, steps)) if is_kept]

    async def step_numbers(self, attempt: AttemptId) -> list[int]:
        """Return the numbers of all steps whose full data is kept, in order."""
        return [int(step) for step in await self._redis.zrange(AttemptKeys.of_attempt(attempt).of("steps"), 0, -1)]

    async def get_step(self, attempt: AttemptId, step: int) -> StepRecord:
        """Return the state of one step; a step without any data is a step with no sequences."""
        return (await self.get_steps(attempt, [step]))[0]

    async def find_step(self, attempt: AttemptId, step: int) -> StepRecord:
        """Return the state of a step whose full data is kept.

        Raises:
            NotFound: the step has expired, or nobody reported anything for it; the text says which.
        """
        ((record, is_kept),) = await self._states(attempt, [step])
        if is_kept:
            return record
        keys = AttemptKeys.of_attempt(attempt)
        floor, kept_steps, num_summaries = await self._answers(
            [
                ("get", keys.of("floor")),
                ("zrange", keys.of("steps"), 0, -1),
                ("zcount", keys.of("summaries"), step, step),
            ]
        )
        first_last = f"steps {int(kept_steps[0])} to {int(kept_steps[-1])} are kept" if kept_steps else ""
        kept = first_last or "none of its steps is kept"
        if num_summaries:
            raise NotFound(
                f"the full data of step {step} of job {attempt.job_id!r} has expired: only the summary of the step "
                f"remains; {kept} in full, {len(kept_steps)} in all"
            )
        if step < int(floor or 0):
            raise NotFound(f"step {step} of job {attempt.job_id!r} has expired: {kept}")
        raise NotFound(f"job {attempt.job_id!r} has no step {step}: {first_last or 'nothing has been reported yet'}")

    async def get_steps(self, attempt: AttemptId, steps: Iterable[int]) -> list[StepRecord]:
        """Return the states of some steps in one round trip.

        A step whose plan is not the one that was stored has failed, and its failure says so.
        """
        return [record for record, _ in await self._states(attempt, steps)]

    async def _states(self, attempt: AttemptId, steps: Iterable[int]) -> list[tuple[StepRecord, bool]]:
        """Return the states of some steps, each with whether the attempt still kept its data when all was read."""
        keys, numbers = AttemptKeys.of_attempt(attempt), list(steps)
        # A lease belongs to a job, which has the step solved that waits longest.
        lease: list[tuple[Any, ...]] = [("exists", keys.job.of("lease")), ("zrange", keys.of("pending"), 0, 0)]
        of_steps = [
            question
            for step in numbers
            for question in (
                ("hlen", keys.step(step, "counts")),
                ("hgetall", keys.step(step, "policies")),
                ("zscore", keys.of("pending"), str(step)),
                ("hmget", keys.step(step, "plan"), RECORD_FIELDS),
                ("get", keys.step(step, "failure")),
                ("hget", keys.step(step, "schedule"), "level"),
                ("zscore", keys.of("steps"), str(step)),
            )
        ]
        has_lease, first_pending, *answers = await self._answers([*lease, *of_steps])
        with reading(f"key {keys.of('pending')}"):
            solved = int(first_pending[0]) if has_lease and first_pending else None
        records = []
        for step, of_step in zip(numbers, zip(*[iter(answers)] * _ANSWERS_PER_STEP, strict=True), strict=True):
            num_sequences, policies, submitted_at, plan, failure, level, score = of_step
            try:
                record = decode_plan_record(attempt.job_id, step, plan)
            except Corrupt as error:
                record, failure = None, str(error).encode()
            if submitted_at is None and record is not None:
                submitted_at = record.submitted_at
            state = StepRecord(
                step=step,
                num_sequences=num_sequences,
                policies={name.decode(): int(number) for name, number in policies.items()},
                submitted_at=submitted_at,
                plan=record,
                failure=None if failure is None else failure.decode(),
                level=None if level is None else Level(level.decode()),
                is_leased=step == solved,
            )
            records.append((state, score is not None))
        return records

    async def kept_steps(self, attempts: Sequence[AttemptId]) -> list[tuple[int, int] | None]:
        """Return the first and the last step of each of some attempts, expired or not; None without steps."""
        keys = [AttemptKeys.of_attempt(attempt).of(name) for attempt in attempts for name in ("steps", "summaries")]
        answers = await self._answers(("zrange", key, end, end, False, True) for key in keys for end in (0, -1))
        ends = [[int(step) for scored in some for _, step in scored] for some in zip(*[iter(answers)] * 4, strict=True)]
        return [(min(steps), max(steps)) if steps else None for steps in ends]
