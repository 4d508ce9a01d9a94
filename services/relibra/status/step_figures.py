"""The figures of a step and of its phases, each defined once: for JSON, pages and metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, create_model

from relibra.planning import Phase
from relibra.planning.plan import Level
from relibra.status.realised import last_complete
from relibra.status.savings import TokenTime, compute_saving
from relibra.store import StepState, StepSummary

Kind: TypeAlias = Literal["ratio", "count", "seconds", "gpu_hours", "size"]
"""How a figure is written."""


@dataclass(frozen=True, slots=True)
class PhaseFigure:
    """A figure of a phase."""

    field: str
    """Its field in `PhaseSummary`."""
    title: str
    kind: Kind
    metric: str = ""
    """Its metric, without the prefix; empty if it has none."""
    label: str = ""
    """The value of the label `kind` of the metric, if the metric has one."""


PHASE_FIGURES = (
    PhaseFigure("num_applied", "Applied", "count"),
    PhaseFigure("num_fallbacks", "Fell back", "count"),
    PhaseFigure("imbalance_plain", "Imbalance without", "ratio", "plain_imbalance_ratio"),
    PhaseFigure("imbalance", "Imbalance with", "ratio", "realised_imbalance_ratio"),
    PhaseFigure("overload_plain", "Overload without", "ratio", "plain_overload_factor"),
    PhaseFigure("overload", "Overload with", "ratio", "realised_overload_factor"),
    PhaseFigure("cum_overload", "Kept overload", "ratio", "realised_cum_overload_factor"),
    PhaseFigure("peak_bytes", "Expert activations", "size", "realised_activation_bytes"),
    PhaseFigure("duration_s", "Took", "seconds", "phase_seconds"),
    PhaseFigure("plan_wait_s", "Plan wait", "seconds", "plan_wait_seconds"),
    PhaseFigure("reorder_sent_bytes", "Reorder sent", "size", "sent_bytes", "reorder"),
    PhaseFigure("reorder_s", "Reorder time", "seconds", "transfer_seconds", "reorder"),
    PhaseFigure("replica_sent_bytes", "Replicas sent", "size", "sent_bytes", "replica"),
    PhaseFigure("replica_wait_s", "Replica wait", "seconds", "transfer_seconds", "replica"),
)

Read: TypeAlias = Callable[[StepSummary, TokenTime | None], Any]
"""Reads a figure of a step of a job whose experts take this time; None where the figure is not known."""


@dataclass(frozen=True, slots=True)
class StepFigure:
    """A figure of a step."""

    name: str
    kind: Kind
    title: str
    read: Read
    heading: str = ""
    """Its heading in a table of steps; empty if it is not shown there."""


def _promise(name: str, kind: Kind, title: str, heading: str = "") -> StepFigure:
    """Return the figure that is a field of a plan's prediction."""

    def read(step: StepSummary, _: TokenTime | None) -> Any:
        return None if step.plan is None else getattr(step.plan.prediction, name)

    return StepFigure(name, kind, title, read, heading)


def _take_largest(name: str, kind: Kind, title: str, heading: str = "") -> StepFigure:
    """Return the figure that is the largest of a field over phases."""

    def read(step: StepSummary, _: TokenTime | None) -> Any:
        return max((getattr(phase, name) for phase in step.phases), default=None)

    return StepFigure(name, kind, title, read, heading)


def _read_plain(step: StepSummary, _: TokenTime | None) -> float | None:
    phase = last_complete(step.phases)
    return None if phase is None else phase.imbalance_plain


def _read_realised(step: StepSummary, _: TokenTime | None) -> float | None:
    phase = last_complete(step.phases)
    return None if phase is None else phase.imbalance


def _read_planned_speedup(step: StepSummary, _: TokenTime | None) -> float | None:
    return step.plan.prediction.imbalance_before / step.plan.prediction.imbalance_after if step.plan else None


def _read_realised_speedup(step: StepSummary, time: TokenTime | None) -> float | None:
    plain, realised = _read_plain(step, time), _read_realised(step, time)
    return plain / realised if plain and realised else None


def _read_saving(step: StepSummary, time: TokenTime | None) -> float | None:
    return compute_saving(step, time).saved_gpu_hours


def _read_latency(step: StepSummary, _: TokenTime | None) -> float | None:
    return step.plan.latency_s if step.plan else None


def _read_duration(step: StepSummary, _: TokenTime | None) -> float | None:
    return sum(phase.duration_s for phase in step.phases) or None


STEP_FIGURES = (
    StepFigure("num_sequences", "count", "Sequences", lambda step, _: step.num_sequences, "Sequences"),
    StepFigure("imbalance_plain", "ratio", "Imbalance without relibra", _read_plain, "Without relibra"),
    StepFigure("imbalance_realised", "ratio", "Imbalance with relibra", _read_realised, "With relibra"),
    _promise("imbalance_after", "ratio", "Imbalance that the plan expects", "Expected"),
    _promise("imbalance_before", "ratio", "Imbalance that the plan expects without relibra"),
    _promise("imbalance_bound", "ratio", "Lower bound under the plan's placement"),
    _promise("imbalance_floor", "ratio", "Lower bound under any placement"),
    StepFigure("speedup_planned", "ratio", "Speed-up of expert computation, expected", _read_planned_speedup),
    StepFigure(
        "speedup_realised", "ratio", "Speed-up of expert computation, realised", _read_realised_speedup, "Speed-up"
    ),
    StepFigure("saved_gpu_hours", "gpu_hours", "GPU-hours saved", _read_saving, "GPU-hours saved"),
    _promise("num_moved_experts", "count", "Experts moved", "Moved"),
    _promise("reorder_size_bytes", "size", "Size of moved experts"),
    _promise("num_replicas", "count", "Replicas", "Replicas"),
    _promise("replica_size_bytes", "size", "Size of replicas"),
    StepFigure("plan_latency_s", "seconds", "Time from schedule to plan", _read_latency, "Plan took"),
    StepFigure("duration_s", "seconds", "Time of all phases", _read_duration, "Phases took"),
    _take_largest("plan_wait_s", "seconds", "Longest wait of a rank for the plan", "Waited"),
    _take_largest("reorder_s", "seconds", "Longest reorder of a rank"),
    _take_largest("replica_wait_s", "seconds", "Longest wait of a rank for replicas"),
    _take_largest("num_fallbacks", "count", "Ranks that kept the last plan", "Fell back"),
)
"""Speed-up is imbalance without relibra over imbalance with it: it counts tokens, not seconds."""


class _Point(BaseModel):
    """One step of a job; what is not known is null.

    Imbalance is slowest rank over mean rank: 1 is ideal. Speed-up is imbalance without relibra over imbalance with it.
    """

    model_config = ConfigDict(frozen=True)

    step: int
    state: StepState
    level: Level | None = Field(description="What the plan of the step is made from.")
    applied: str | None = Field(description="The id of the plan that ranks applied.")
    published_at: datetime | None = Field(description="When the plan was published.")
    reports: list[tuple[int, int]] = Field(description="Ranks that reported and ranks that should, for each phase.")
    is_complete: bool = Field(description="Whether all ranks have reported the update, which ends a step.")
    is_expired: bool = Field(description="Whether only the summary of the step remains.")


_FIGURE_TYPES: dict[Kind, Any] = {"count": int | None, "size": int | None}
_MEMBERS: dict[str, Any] = {
    figure.name: (_FIGURE_TYPES.get(figure.kind, float | None), Field(description=f"{figure.title}."))
    for figure in STEP_FIGURES
}
_HistoryPoint = create_model(
    "HistoryPoint",
    __base__=_Point,
    __doc__=_Point.__doc__,
    **_MEMBERS,
)


HISTORY = list[_HistoryPoint]  # type: ignore[valid-type]
"""The form of a history, oldest step first."""


def history_point(step: StepSummary, time: TokenTime | None) -> _Point:
    """Return the figures of a step of a job whose experts take this time."""
    applied = next((phase.applied for phase in step.phases if phase.applied is not None), None)
    return _HistoryPoint(
        step=step.step,
        state=step.state,
        level=step.level,
        applied=None if applied is None else str(applied),
        published_at=None if step.plan is None else datetime.fromtimestamp(step.plan.published_at, tz=UTC),
        reports=[(phase.num_reports, phase.num_expected) for phase in step.phases],
        is_complete=any(
            phase.phase is Phase.UPDATE and phase.num_reports == phase.num_expected for phase in step.phases
        ),
        is_expired=step.expired is not None,
        **{figure.name: figure.read(step, time) for figure in STEP_FIGURES},
    )
