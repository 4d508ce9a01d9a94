"""The figures of two steps, or of two jobs over their steps, side by side. Pure functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from relibra.status.history_models import realised_imbalance, speedup
from relibra.status.savings import Saving, TokenTime, saving_of
from relibra.store import StepSummary

Kind: TypeAlias = Literal["ratio", "count", "seconds", "gpu_hours", "size"]
"""How a figure is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure on both sides; None where it is not known."""

    name: str
    kind: Kind
    left: float | None
    right: float | None

    @property
    def change(self) -> float | None:
        """The right side over the left one, minus 1; None if that is unknown or without end."""
        return self.right / self.left - 1 if self.left and self.right is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The steps of one side."""

    steps: Sequence[StepSummary]
    time: TokenTime | None
    """How long the job's experts take."""

    def value(self, figure: "_Figure") -> float | None:
        """Return the median of a figure over the steps in which it is known."""
        known = [value for step in self.steps if (value := figure.of(step, self.time)) is not None]
        return median(known) if known else None


@dataclass(frozen=True, slots=True)
class _Figure:
    name: str
    kind: Kind
    of: Callable[[StepSummary, TokenTime | None], float | None]


def compare(left: Side, right: Side) -> list[Compared]:
    """Return the figures of both sides: those of a step, or medians over several."""
    return [
        Compared(name=each.name, kind=each.kind, left=left.value(each), right=right.value(each)) for each in _FIGURES
    ]


def compare_savings(left: Saving, right: Saving) -> Compared:
    """Return what balancing saved in all steps of two jobs."""
    name = "GPU-hours saved in all"
    return Compared(name=name, kind="gpu_hours", left=left.saved_gpu_hours, right=right.saved_gpu_hours)


def _promised(name: str) -> Callable[[StepSummary, TokenTime | None], float | None]:
    return lambda step, _: None if step.plan is None else getattr(step.plan.prediction, name)


def _longest(name: str) -> Callable[[StepSummary, TokenTime | None], float | None]:
    return lambda step, _: max((getattr(each, name) for each in step.phases), default=None)


def _realised_speedup(step: StepSummary, _: TokenTime | None) -> float | None:
    return None if step.plan is None else speedup(step.plan.prediction, realised_imbalance(step.phases))


def _took(step: StepSummary, _: TokenTime | None) -> float | None:
    return sum(each.duration_s for each in step.phases) or None


_FIGURES = (
    _Figure("Unbalanced", "ratio", _promised("imbalance_before")),
    _Figure("Planned", "ratio", _promised("imbalance_after")),
    _Figure("Realised", "ratio", lambda step, _: realised_imbalance(step.phases)),
    _Figure("Bound of the placement", "ratio", _promised("imbalance_bound")),
    _Figure("Floor of any placement", "ratio", _promised("imbalance_floor")),
    _Figure("Speed-up, realised", "ratio", _realised_speedup),
    _Figure("GPU-hours saved", "gpu_hours", lambda step, time: saving_of(step, time).saved_gpu_hours),
    _Figure("Sequences", "count", lambda step, _: step.num_sequences),
    _Figure("Experts moved", "count", _promised("num_moved_experts")),
    _Figure("Size of moved experts", "size", _promised("reorder_size_bytes")),
    _Figure("Replicas", "count", _promised("num_replicas")),
    _Figure("Size of replicas", "size", _promised("replica_size_bytes")),
    _Figure("Plan took", "seconds", lambda step, _: None if step.plan is None else step.plan.latency_s),
    _Figure("Phases took", "seconds", _took),
    _Figure("Longest wait for the plan", "seconds", _longest("plan_wait_s")),
    _Figure("Longest reorder", "seconds", _longest("reorder_s")),
    _Figure("Longest wait for replicas", "seconds", _longest("replica_wait_s")),
    _Figure("Ranks that fell back", "count", _longest("num_fallbacks")),
    _Figure(
        "Cells routed otherwise",
        "count",
        lambda step, _: max((each.routing.num_otherwise for each in step.phases), default=None),
    ),
)
