"""The summaries of steps, a few hundred bytes each, which stay when the full data of a step expires.

Lists over all steps of an attempt use summaries of the steps whose full data is kept too, so that both look alike.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from relibra.planning.execution import PhaseSummary
from relibra.store.attempts import write_duration
from relibra.store.connection import Connected
from relibra.store.json_codec import from_json, to_json
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.records import StepRecord

SUMMARY_SIZE_BYTES = 700
"""What a summary takes in Redis, with its place in a sorted set."""
_MAX_FAILURE_LENGTH = 200


class ExpiryCause(StrEnum):
    """Why the full data of a step expired."""

    STEPS = "steps"
    """The attempt has `retained_steps` newer steps."""
    BYTES = "bytes"
    """The steps of the job took more than `retained_bytes`."""
    AGE = "age"
    """The step began more than `retained_s` ago."""
    ATTEMPTS = "attempts"
    """Too many newer attempts of the job began."""


_WHY = {
    ExpiryCause.STEPS: "newer steps took its place (retained_steps)",
    ExpiryCause.BYTES: "the steps of the job took more memory than they may (retained_bytes)",
    ExpiryCause.AGE: "it was older than steps may get (retained_s)",
    ExpiryCause.ATTEMPTS: "newer attempts of the job began",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """When and why the full data of a step expired."""

    at: float
    """Unix time in seconds."""
    cause: ExpiryCause
    age_s: float
    """How old the step was then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary(StepRecord):
    """A step with what its ranks did, in brief. Once the step has expired, `policies` are empty."""

    phases: tuple[PhaseSummary, ...]
    """What the ranks did, as far as they reported, in the order of execution."""
    expired: Expired | None = None
    """When and why the full data expired; None while it is kept."""

    @property
    def expiry(self) -> str | None:
        """When and why the full data expired, for people; None while it is kept."""
        if self.expired is None:
            return None
        age, why = write_duration(self.expired.age_s), _WHY[self.expired.cause]
        return f"full data expired after {age}, because {why}; only this summary remains"

    @classmethod
    def of(
        cls,
        record: StepRecord,
        executed: Sequence[PhaseSummary],
        *,
        expired: Expired | None = None,
    ) -> "StepSummary":
        """Sum up a step and what its ranks did."""
        return cls(**_values(record, StepRecord), phases=tuple(executed), expired=expired)


class Summaries(Connected):
    """Reads what is left of expired steps."""

    async def get_summary(self, attempt: AttemptId, step: int) -> StepSummary | None:
        """Return the summary of an expired step; None if the step is not expired or was never there."""
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        documents = await self._redis.zrangebyscore(key, step, step)
        return decode_summary(documents[0]) if documents else None

    async def list_summaries(
        self, attempt: AttemptId, *, limit: int = 100, before: int | None = None
    ) -> list[StepSummary]:
        """Return the last `limit` expired steps, newest first; only steps below `before` if it is given."""
        highest = "+inf" if before is None else f"({before}"
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        documents = await self._redis.zrevrangebyscore(key, highest, "-inf", start=0, num=limit)
        return [decode_summary(document) for document in documents]

    async def summaries_after(self, attempt: AttemptId, step: int, *, limit: int) -> list[StepSummary]:
        """Return the first `limit` expired steps above `step`, oldest first."""
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        documents = await self._redis.zrangebyscore(key, f"({step}", "+inf", start=0, num=limit)
        return [decode_summary(document) for document in documents]

    async def count_summaries(self, attempt: AttemptId, last_step: int) -> int:
        """Return how many steps up to `last_step` have expired."""
        return int(await self._redis.zcount(AttemptKeys.of_attempt(attempt).of("summaries"), "-inf", last_step))

    async def sample_summaries(self, attempt: AttemptId, num: int) -> list[StepSummary]:
        """Return `num` expired steps from first to last, evenly spaced and newest first; all if there are no more."""
        key = AttemptKeys.of_attempt(attempt).of("summaries")
        total = int(await self._redis.zcard(key))
        if total <= num:
            return await self.list_summaries(attempt, limit=num)
        positions = [index * (total - 1) // max(1, num - 1) for index in range(num)]
        answers = await self._answers(("zrevrange", key, position, position) for position in positions)
        # A step that is gone meanwhile leaves a gap.
        return [decode_summary(steps[0]) for steps in answers if steps]

    async def measure_summaries(self, attempts: Sequence[AttemptId]) -> list[int]:
        """Return about how many bytes the summaries of each of some attempts take in Redis."""
        numbers = await self._answers(
            ("zcard", AttemptKeys.of_attempt(attempt).of("summaries")) for attempt in attempts
        )
        return [SUMMARY_SIZE_BYTES * number for number in numbers]

    async def drop_summaries(self, attempt: AttemptId) -> None:
        """Remove the summaries of an attempt that is over."""
        await self._redis.unlink(AttemptKeys.of_attempt(attempt).of("summaries"))


def encode_summary(summary: StepSummary) -> bytes:
    """Encode a summary, without what is too long or only of use while the full data is kept."""
    plan, failure = summary.plan, summary.failure
    brief = replace(
        summary,
        policies={},
        plan=None if plan is None else replace(plan, digest=b"", reason=""),
        failure=None if failure is None else failure[:_MAX_FAILURE_LENGTH],
        phases=tuple(PhaseSummary(**_values(phase, PhaseSummary)) for phase in summary.phases),
    )
    return zlib.compress(to_json(brief))


def decode_summary(document: bytes) -> StepSummary:
    """Decode the document that `encode_summary` wrote."""
    return from_json(StepSummary, zlib.decompress(document))


def _values(record: Any, kind: Any) -> dict[str, Any]:
    """Return the fields that a record, of `kind` or of a class derived from it, has as one of `kind`."""
    return {field.name: getattr(record, field.name) for field in fields(kind)}
