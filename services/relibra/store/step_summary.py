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
from relibra.planning.execution import Cause, Execution, PhaseSummary
from relibra.planning.plan import Prediction
from relibra.planning.routing_check import RoutingCause, RoutingCheck
from relibra.store.records import PlanRecord, StepRecord, StepState

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
class PlanBrief:
    """The part of a `PlanRecord` that a summary keeps."""

    id: PlanId
    prediction: Prediction
    published_at: float
    latency_s: float | None

    @classmethod
    def of(cls, plan: PlanRecord) -> "PlanBrief":
        """Return the brief of a plan."""
        return cls(id=plan.id, prediction=plan.prediction, published_at=plan.published_at, latency_s=plan.latency_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """A step in brief."""

    step: int
    state: StepState
    """How far the step had come."""
    num_sequences: int
    num_tokens: int | None = None
    """Tokens of the step; None without a plan, and where nobody counted them."""
    submitted_at: float | None
    """Unix time of the schedule; None if the step had none or failed."""
    plan: PlanBrief | None
    failure: str | None
    """Why the step could not be planned, cut after 200 characters."""
    phases: tuple[PhaseSummary, ...]
    """What the ranks did, as far as they reported, in the order of execution."""
    expired: Expired | None = None
    """None while the full data of the step is kept."""

    @classmethod
    def of(
        cls,
        record: StepRecord,
        executed: Sequence[Execution],
        *,
        num_tokens: int | None = None,
        expired: Expired | None = None,
    ) -> "StepSummary":
        """Sum up a step and what its ranks did."""
        return cls(
            step=record.step,
            state=record.state,
            num_sequences=record.num_sequences,
            num_tokens=num_tokens,
            submitted_at=record.submitted_at,
            plan=None if record.plan is None else PlanBrief.of(record.plan),
            failure=None if record.failure is None else record.failure[:_MAX_FAILURE_LENGTH],
            phases=tuple(executed),
            expired=expired,
        )


# Lists, because names would double the size of a summary.
_PREDICTION_FIELDS = tuple(each.name for each in fields_of(Prediction))
_PHASE_FIELDS = tuple(each.name for each in fields_of(PhaseSummary) if each.name != "phase")


def encode_summary(summary: StepSummary) -> str:
    """Encode a summary as compact JSON; what is None or empty is left out."""
    fields: dict[str, Any] = {
        "step": summary.step,
        "state": summary.state,
        "sequences": summary.num_sequences,
        "tokens": summary.num_tokens,
        "submitted": None if summary.submitted_at is None else round(summary.submitted_at, 3),
        "failure": summary.failure,
    }
    if plan := summary.plan:
        fields["plan"] = [f"{plan.id.epoch:x}", plan.id.version, round(plan.published_at, 3), _short(plan.latency_s)]
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
    plan, expired = fields.get("plan"), fields.get("expired")
    return StepSummary(
        step=fields["step"],
        state=StepState(fields["state"]),
        num_sequences=fields["sequences"],
        num_tokens=fields.get("tokens"),
        submitted_at=fields.get("submitted"),
        plan=None
        if plan is None
        else PlanBrief(
            id=PlanId(epoch=int(plan[0], 16), version=plan[1]),
            prediction=Prediction(**dict(zip(_PREDICTION_FIELDS, fields["prediction"], strict=False))),
            published_at=plan[2],
            latency_s=plan[3],
        ),
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
