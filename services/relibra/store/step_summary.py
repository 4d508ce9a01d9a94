"""The summary of a step, a few hundred bytes, which stays when its full data expires; nothing here knows Redis.

Lists over all steps of an attempt use summaries of the steps whose full data is kept too, so that both look alike.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from relibra.planning.execution import PhaseSummary
from relibra.store.json_codec import as_row, restore
from relibra.store.records import StepRecord

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

    num_tokens: int | None = None
    """Tokens of an expired step; None without a plan, and where nobody counted them."""
    phases: tuple[PhaseSummary, ...]
    """What the ranks did, as far as they reported, in the order of execution."""
    expired: Expired | None = None
    """When and why the full data expired; None while it is kept."""

    @classmethod
    def of(
        cls,
        record: StepRecord,
        executed: Sequence[PhaseSummary],
        *,
        num_tokens: int | None = None,
        expired: Expired | None = None,
    ) -> "StepSummary":
        """Sum up a step and what its ranks did."""
        return cls(**_values(record, StepRecord), phases=tuple(executed), num_tokens=num_tokens, expired=expired)


def encode_summary(summary: StepSummary) -> str:
    """Encode a summary as a row, without what is too long or only of use while the full data is kept."""
    plan, failure = summary.plan, summary.failure
    brief = replace(
        summary,
        policies={},
        plan=None if plan is None else replace(plan, digest=b"", reason=""),
        failure=None if failure is None else failure[:_MAX_FAILURE_LENGTH],
        phases=tuple(PhaseSummary(**_values(each, PhaseSummary)) for each in summary.phases),
    )
    return json.dumps(as_row(brief), separators=(",", ":"))


def decode_summary(document: bytes) -> StepSummary:
    """Decode the document that `encode_summary` wrote."""
    return restore(StepSummary, json.loads(document))


def _values(record: Any, kind: Any) -> dict[str, Any]:
    """Return the fields that a record, of `kind` or of a class derived from it, has as one of `kind`."""
    return {each.name: getattr(record, each.name) for each in fields(kind)}
