"""The summary of a step, a few hundred bytes, which stays when its full data expires; nothing here knows Redis.

Lists over all steps of an attempt use summaries of the steps whose full data is kept too, so that both look alike.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of
from enum import StrEnum
from typing import Any

from relibra.planning import Phase, PlanId
from relibra.planning.execution import Cause, PhaseSummary
from relibra.planning.plan import Prediction
from relibra.planning.routing_check import RoutingCause, RoutingCheck
from relibra.store.records import PlanRecord, StepRecord

_MAX_FAILURE_LENGTH = 200
_NUM_DIGITS = 5
"""Significant digits of imbalances and times."""


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
        known = {each.name: getattr(record, each.name) for each in fields_of(StepRecord)}
        return cls(**known, phases=tuple(executed), num_tokens=num_tokens, expired=expired)


# Lists, because names would double the size of a summary.
_PREDICTION_FIELDS = tuple(each.name for each in fields_of(Prediction))
_PHASE_FIELDS = tuple(each.name for each in fields_of(PhaseSummary) if each.name != "phase")


def encode_summary(summary: StepSummary) -> str:
    """Encode a summary as compact JSON; what is None or empty is left out."""
    fields: dict[str, Any] = {
        "step": summary.step,
        "sequences": summary.num_sequences,
        "tokens": summary.num_tokens,
        "submitted": None if summary.submitted_at is None else round(summary.submitted_at, 3),
        "failure": None if summary.failure is None else summary.failure[:_MAX_FAILURE_LENGTH],
    }
    if plan := summary.plan:
        fields["plan"] = [f"{plan.id.epoch:x}", plan.id.version, round(plan.published_at, 3)]
        fields["prediction"] = [_short(getattr(plan.prediction, name)) for name in _PREDICTION_FIELDS]
    if summary.phases:
        fields["phases"] = {
            each.phase: [_short(getattr(each, name)) for name in _PHASE_FIELDS] for each in summary.phases
        }
    if expired := summary.expired:
        fields["expired"] = [round(expired.at, 3), expired.cause, round(expired.age_s, 3)]
    kept = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(kept, separators=(",", ":"))


def decode_summary(document: bytes) -> StepSummary:
    """Decode the document that `encode_summary` wrote."""
    fields = json.loads(document)
    expired, plan = fields.get("expired"), None
    if "plan" in fields:
        epoch, version, published_at = fields["plan"]
        plan = PlanRecord(
            id=PlanId(epoch=int(epoch, 16), version=version),
            step=fields["step"],
            prediction=Prediction(**dict(zip(_PREDICTION_FIELDS, fields["prediction"], strict=True))),
            submitted_at=fields.get("submitted"),
            published_at=published_at,
        )
    return StepSummary(
        step=fields["step"],
        num_sequences=fields["sequences"],
        policies={},
        num_tokens=fields.get("tokens"),
        submitted_at=fields.get("submitted"),
        plan=plan,
        failure=fields.get("failure"),
        phases=tuple(_decode_phase(phase, values) for phase, values in fields.get("phases", {}).items()),
        expired=None if expired is None else Expired(at=expired[0], cause=ExpiryCause(expired[1]), age_s=expired[2]),
    )


def _decode_phase(phase: str, values: list[Any]) -> PhaseSummary:
    known = dict(zip(_PHASE_FIELDS, values, strict=True))
    num_cells, by_cause = known["routing"]
    otherwise = {RoutingCause(name): number for name, number in by_cause.items()}
    typed = {
        "phase": Phase(phase),
        "fallbacks": {Cause(name): number for name, number in known["fallbacks"].items()},
        "routing": RoutingCheck(num_cells=num_cells, otherwise=otherwise),
    }
    return PhaseSummary(**known | typed)


def _short(value: Any) -> Any:
    if isinstance(value, RoutingCheck):
        return [value.num_cells, value.otherwise]
    return float(f"{value:.{_NUM_DIGITS}g}") if isinstance(value, float) else value
