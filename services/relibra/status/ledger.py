"""Adds up what balancing saved over all steps of a job that are kept, each step once.

An attempt may have 100 000 expired steps, and every scrape asks for their sum. The sum of the expired steps of an
attempt is kept, so that a scrape reads only those that expired since. A step whose full data is kept is read again when
another rank has reported it. An attempt that is over never changes.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from relibra.status.savings import NOTHING, Saving, TokenTime, add_up, compute_saving
from relibra.store import Attempt, JobRecord, StepRecord, StepSummary, Store
from relibra.store.single_flight import SingleFlight

V = TypeVar("V")

_BATCH = 500
"""Expired steps that are read at once: a few milliseconds of the event loop."""
_NUM_ATTEMPTS = 4096
_NUM_STEPS = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expired:
    """The sum over the expired steps of an attempt so far."""

    saving: Saving = NOTHING
    num_steps: int = 0
    last_step: int = -1


class _Newest(OrderedDict[Hashable, V], Generic[V]):
    """A mapping that forgets its oldest entries beyond `capacity`."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def __setitem__(self, key: Hashable, value: V) -> None:
        super().__setitem__(key, value)
        while len(self) > self._capacity:
            self.popitem(last=False)


class Ledger:
    """The savings of jobs, with those that cannot change any more in memory.

    Args:
        store: where the steps are.
        in_brief: returns steps whose full data is kept, with what their ranks did.
    """

    def __init__(
        self, store: Store, in_brief: Callable[[JobRecord, list[StepRecord]], Awaitable[list[StepSummary]]]
    ) -> None:
        self._store, self._in_brief = store, in_brief
        self._past: SingleFlight[Saving] = SingleFlight(_NUM_ATTEMPTS)
        self._expired: _Newest[_Expired] = _Newest(_NUM_ATTEMPTS)
        self._kept: _Newest[Saving] = _Newest(_NUM_STEPS)

    async def of_job(self, attempts: Sequence[Attempt]) -> Saving:
        """Return what balancing saved in some attempts of a job."""
        return add_up([await self._of_attempt(attempt) for attempt in attempts])

    async def _of_attempt(self, attempt: Attempt) -> Saving:
        if attempt.ended_at is None:
            return await self._add_up(attempt)
        return await self._past.get((attempt.job_id, attempt.epoch), lambda: self._add_up(attempt))

    async def _add_up(self, job: JobRecord) -> Saving:
        time = TokenTime.of(job)
        while True:
            kept = await self._store.step_numbers(job)
            saving = await self._of_expired(job, time) + await self._of_kept(job, kept, time)
            # A step that expired meanwhile may be in both sums, or in none.
            if set(kept) <= set(await self._store.step_numbers(job)):
                return saving

    async def _of_kept(self, job: JobRecord, kept: Sequence[int], time: TokenTime | None) -> Saving:
        """Return the sum over steps whose full data is kept."""
        numbers = await self._store.num_reports(job, kept)
        keys = {
            step: (job.job_id, job.epoch, step, number) for step, number in zip(kept, numbers, strict=True) if number
        }
        unread = [step for step, key in keys.items() if key not in self._kept]
        for brief in await self._in_brief(job, await self._store.get_steps(job, unread)):
            self._kept[keys[brief.step]] = compute_saving(brief, time)
        return add_up(self._kept.get(key, NOTHING) for key in keys.values())

    async def _of_expired(self, job: JobRecord, time: TokenTime | None) -> Saving:
        """Return the sum over all expired steps."""
        key = (job.job_id, job.epoch)
        known = self._expired.get(key, _Expired())
        if await self._store.count_summaries(job, known.last_step) != known.num_steps:
            known = _Expired()  # earlier steps expired late
        while summaries := await self._store.summaries_after(job, known.last_step, limit=_BATCH):
            known = _Expired(
                saving=known.saving + add_up(compute_saving(summary, time) for summary in summaries),
                num_steps=known.num_steps + len(summaries),
                last_step=summaries[-1].step,
            )
        self._expired[key] = known
        return known.saving
