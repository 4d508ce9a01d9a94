"""The figures of a step and of its phases, each defined once: for JSON, pages, comparisons and metrics."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, create_model

from relibra.planning import Phase
from relibra.planning.execution import PhaseSummary
from relibra.status.savings import TokenTime, saving_of
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
    PhaseFigure("imbalance", "Imbalance", "ratio", "realised_imbalance_ratio"),
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
    title: str
    kind: Kind
    read: Read
    description: str
    heading: str = ""
    """Its heading in a table of steps; empty if it is not shown there."""


def realised_imbalance(phases: Sequence[PhaseSummary]) -> float | None:
    """Return the imbalance of the last phase that all ranks have reported, or None."""
    return next((phase.imbalance for phase in reversed(phases) if phase.imbalance is not None), None)


def _promised(name: str) -> Read:
    return lambda step, _: None if step.plan is None else getattr(step.plan.prediction, name)


def _most(name: str) -> Read:
    return lambda step, _: max((getattr(phase, name) for phase in step.phases), default=None)


def _speedup(imbalance: Read) -> Read:
    def divide(step: StepSummary, time: TokenTime | None) -> float | None:
        balanced = imbalance(step, time)
        return None if step.plan is None or not balanced else float(step.plan.prediction.imbalance_before / balanced)

    return divide


def _realised(step: StepSummary, _: TokenTime | None) -> float | None:
    return realised_imbalance(step.phases)


STEP_FIGURES = (
    StepFigure(
        "num_sequences", "Sequences", "count", lambda step, _: step.num_sequences, "Sequences reported.", "Sequences"
    ),
    StepFigure(
        "imbalance_before", "Unbalanced", "ratio", _promised("imbalance_before"), "Without balancing.", "Unbalanced"
    ),
    StepFigure("imbalance_after", "Planned", "ratio", _promised("imbalance_after"), "As planned.", "Planned"),
    StepFigure(
        "imbalance_realised",
        "Realised",
        "ratio",
        _realised,
        "As executed in the last phase that all ranks reported.",
        "Realised",
    ),
    StepFigure(
        "imbalance_bound",
        "Bound of the placement",
        "ratio",
        _promised("imbalance_bound"),
        "Lower bound under the plan's placement.",
    ),
    StepFigure(
        "imbalance_floor",
        "Floor of any placement",
        "ratio",
        _promised("imbalance_floor"),
        "Lower bound under any placement.",
    ),
    StepFigure(
        "speedup_planned",
        "Speed-up, planned",
        "ratio",
        _speedup(_promised("imbalance_after")),
        "Speed-up of expert computation: imbalance without balancing over planned imbalance.",
    ),
    StepFigure(
        "speedup_realised",
        "Speed-up, realised",
        "ratio",
        _speedup(_realised),
        "Imbalance without balancing over realised imbalance. Both count tokens, not seconds.",
        "Speed-up",
    ),
    StepFigure(
        "saved_gpu_hours",
        "GPU-hours saved",
        "gpu_hours",
        lambda step, time: saving_of(step, time).saved_gpu_hours,
        "GPU-hours that balancing saved; `savings` of the job says what they rest on.",
        "GPU-hours saved",
    ),
    StepFigure(
        "num_moved_experts",
        "Experts moved",
        "count",
        _promised("num_moved_experts"),
        "Experts whose home differs from the step before.",
        "Moved",
    ),
    StepFigure(
        "reorder_size_bytes",
        "Size of moved experts",
        "size",
        _promised("reorder_size_bytes"),
        "State of the moved experts.",
    ),
    StepFigure("num_replicas", "Replicas", "count", _promised("num_replicas"), "Replicas of all cells.", "Replicas"),
    StepFigure("replica_size_bytes", "Size of replicas", "size", _promised("replica_size_bytes"), "Their weights."),
    StepFigure(
        "plan_latency_s",
        "Plan took",
        "seconds",
        lambda step, _: None if step.plan is None else step.plan.latency_s,
        "Time from schedule to plan.",
        "Plan took",
    ),
    StepFigure(
        "duration_s",
        "Phases took",
        "seconds",
        lambda step, _: sum(phase.duration_s for phase in step.phases) if step.phases else None,
        "Phases of the ranks for which they took longest, together.",
        "Phases took",
    ),
    StepFigure(
        "plan_wait_s",
        "Longest wait for the plan",
        "seconds",
        _most("plan_wait_s"),
        "Longest wait of a rank for the plan, in any phase.",
        "Waited",
    ),
    StepFigure("reorder_s", "Longest reorder", "seconds", _most("reorder_s"), "Longest reorder of a rank."),
    StepFigure(
        "replica_wait_s",
        "Longest wait for replicas",
        "seconds",
        _most("replica_wait_s"),
        "Longest wait of a rank for replica transfers, in any phase.",
    ),
    StepFigure(
        "num_fallbacks",
        "Ranks that fell back",
        "count",
        _most("num_fallbacks"),
        "Ranks that kept the previous placement, in the worst phase.",
        "Fell back",
    ),
    StepFigure(
        "num_routed_otherwise",
        "Cells routed otherwise",
        "count",
        lambda step, _: max((phase.routing.num_otherwise for phase in step.phases), default=None),
        "Cells whose routing differed from the plan, in the worst phase.",
    ),
)


class _Point(BaseModel):
    model_config = ConfigDict(frozen=True)

    step: int
    state: StepState
    published_at: datetime | None = Field(description="When the plan was published.")
    reports: list[tuple[int, int]] = Field(description="Ranks that reported and ranks that should, for each phase.")
    is_complete: bool = Field(description="Whether all ranks have reported the update, which ends a step.")
    is_expired: bool = Field(description="Whether only the summary of the step remains.")


_FIGURE_TYPES: dict[Kind, Any] = {"count": int | None, "size": int | None}
_MEMBERS: dict[str, Any] = {
    figure.name: (_FIGURE_TYPES.get(figure.kind, float | None), Field(description=figure.description))
    for figure in STEP_FIGURES
}
_HistoryPoint = create_model(
    "HistoryPoint",
    __base__=_Point,
    __doc__="One step of a job. Imbalance is slowest rank over mean rank: 1 is ideal. What is not known is null.",
    **_MEMBERS,
)


HISTORY = list[_HistoryPoint]  # type: ignore[valid-type]
"""The form of a history, oldest step first."""


def history_point(step: StepSummary, time: TokenTime | None) -> _Point:
    """Return the figures of a step of a job whose experts take this time."""
    return _HistoryPoint(
        step=step.step,
        state=step.state,
        published_at=None if step.plan is None else datetime.fromtimestamp(step.plan.published_at, tz=UTC),
        reports=[(phase.num_reports, phase.num_expected) for phase in step.phases],
        is_complete=any(
            phase.phase is Phase.UPDATE and phase.num_reports == phase.num_expected for phase in step.phases
        ),
        is_expired=step.expired is not None,
        **{figure.name: figure.read(step, time) for figure in STEP_FIGURES},
    )
