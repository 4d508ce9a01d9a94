"""The expiry of steps: their full data goes, a summary stays.

The planner decides which steps expire (`planner/loop/retention.py`); one script removes the data of a step and keeps
its summary, so no reader sees neither.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relibra.errors import Corrupt
from relibra.store.keys import MAX_SUMMARIES, STEP_KEYS, AttemptKeys, JobKeys
from relibra.store.plans import Plans
from relibra.store.records import JobRecord
from relibra.store.reports import Reports
from relibra.store.steps import Steps
from relibra.store.summaries import Expired, ExpiryCause, StepSummary, encode_summary

logger = logging.getLogger(__name__)

_STEPS_PER_SCRIPT = 64
_REPORTS = list(STEP_KEYS).index("reports") + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedStep:
    """A step whose full data is kept, as the decision about its expiry sees it."""

    step: int
    size_bytes: int
    """What its sequences, schedule, plan and reports take in Redis, by `field_bytes`."""
    age_s: float
    """How long ago a planner first measured the step, by the clock of Redis: within a minute of its first data."""
    is_open: bool
    """The step has sequences and no schedule, and no later step was planned since."""
    is_pending: bool
    """The step waits for its plan."""
    is_planned: bool
    num_reports: int
    """Ranks and phases that reported."""


class Expiry(Plans, Steps, Reports):
    """Measures steps, and replaces the full data of steps by summaries."""

    async def measure_steps(self, job: JobRecord) -> tuple[list[RetainedStep], float]:
        """Return the steps of an attempt whose full data is kept, oldest first.

        Returns:
            The steps, and how many seconds ago the current attempt of the job was heard.
        """
        keys = AttemptKeys.of_attempt(job)
        steps = [int(step) for step in await self._redis.zrange(keys.of("steps"), 0, -1)]
        retained: list[RetainedStep] = []
        silent_s = 0.0
        for start in range(0, len(steps), _STEPS_PER_SCRIPT):
            some = steps[start : start + _STEPS_PER_SCRIPT]
            silent_ms, *measured = await self._script(
                "measure_steps",
                [
                    keys.job.of("job"),
                    *map(keys.of, ("steps", "open", "pending", "plans", "begun", "sizes")),
                    *(keys.step(step, name) for step in some for name in ("plan", "reports")),
                ],
                some,
            )
            silent_s = silent_ms / 1000
            for step, (size_bytes, age_ms, is_open, is_pending, is_planned, num_reports) in zip(
                some, measured, strict=True
            ):
                retained.append(
                    RetainedStep(
                        step=step,
                        size_bytes=size_bytes,
                        age_s=age_ms / 1000,
                        is_open=bool(is_open),
                        is_pending=bool(is_pending),
                        is_planned=bool(is_planned),
                        num_reports=num_reports,
                    )
                )
        return retained, silent_s

    async def expire_steps(self, job: JobRecord, causes: Mapping[RetainedStep, ExpiryCause], now: float) -> list[int]:
        """Replace the full data of steps by summaries.

        Args:
            job: the attempt, current or over.
            causes: the steps that expire, and why. In the current attempt, none of them may be pending.
            now: Unix time in seconds.

        Returns:
            The steps that expired. A step that has a new schedule, sequences or reports since it was measured stays.
        """
        keys, steps, expired = AttemptKeys.of_attempt(job), list(causes), []
        for start in range(0, len(steps), _STEPS_PER_SCRIPT):
            some = steps[start : start + _STEPS_PER_SCRIPT]
            summaries = await self._sum_up_steps(job, some, causes, now)
            arguments: list[object] = [MAX_SUMMARIES, _REPORTS]
            for old, summary in zip(some, summaries, strict=True):
                arguments += [old.step, int(old.is_open), int(old.is_pending), old.num_reports]
                arguments.append(encode_summary(summary))
            names = ("floor", "pending", "steps", "open", "plans", "begun", "sizes", "crashes", "summaries")
            expired += await self._script(
                "expire_steps",
                [*map(keys.of, names), *(keys.step(old.step, name) for old in some for name in STEP_KEYS)],
                arguments,
            )
        return expired

    async def claim_sweep(self, job_id: str, interval_s: float) -> bool:
        """Return True for one planner in `interval_s`, which then looks for steps of the job that expire."""
        return bool(await self._script("claim_sweep", [JobKeys(job_id).of("job")], [int(interval_s * 1000)]))

    async def _sum_up_steps(
        self,
        job: JobRecord,
        steps: Sequence[RetainedStep],
        causes: Mapping[RetainedStep, ExpiryCause],
        now: float,
    ) -> list[StepSummary]:
        numbers = [old.step for old in steps]
        records, executed = await self.get_steps(job, numbers), await self.get_executions(job, numbers)
        summaries = []
        for old, record, phases in zip(steps, records, executed, strict=True):
            expired = Expired(at=now, cause=causes[old], age_s=old.age_s)
            try:
                if isinstance(phases, Corrupt):
                    raise phases
                if sum(phase.num_reports for phase in phases) != old.num_reports:
                    phases = await self.sum_reports(job, old.step)
            except Corrupt as error:
                # A step that cannot be read must not stay for good. Its summary says what is missing.
                logger.error("job %s: step %d expires unread: %s", job.job_id, old.step, error)
                summaries.append(StepSummary.of(replace(record, failure=str(error)), [], expired=expired))
            else:
                summaries.append(StepSummary.of(record, phases, expired=expired))
        return summaries
