"""What the store hands out and takes in, free of Redis.

L layers, E experts.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from relibra.planning import Cluster, Model, Plan, PlanId, PlanParams
from relibra.planning.plan import Forecast
from relibra.planning.plan_file import plan_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A registered job."""

    job_id: str
    epoch: int
    registered_at: float
    """Unix time in seconds."""
    model: Model
    cluster: Cluster
    params: PlanParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCounts:
    """The routing of one sequence, to be kept under (job, step, sequence id)."""

    job_id: str
    step: int
    sequence_id: str
    counts_LE: NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step that has its schedule and waits for its plan."""

    job_id: str
    step: int
    submitted_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPlan:
    """A checked plan as it is published: small enough to travel between processes."""

    digest: bytes
    reason: str
    forecast: Forecast
    file: bytes

    @classmethod
    def of(cls, plan: Plan) -> "EncodedPlan":
        """Encode a plan."""
        return cls(digest=plan.digest, reason=plan.reason, forecast=plan.forecast, file=plan_to_bytes(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A published plan without its arrays."""

    id: PlanId
    step: int
    digest: bytes
    reason: str
    forecast: Forecast
    published_at: float


class StepState(StrEnum):
    """How far a step has come."""

    COLLECTING = "collecting"
    """Sequences are reported, there is no schedule yet."""
    SOLVING = "solving"
    PLANNED = "planned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What is known of a step."""

    step: int
    num_sequences: int
    """Sequences reported so far."""
    submitted_at: float | None
    """When the schedule came; None before that and after the step was planned."""
    plan: PlanRecord | None
    failure: str | None

    @property
    def state(self) -> StepState:
        """How far the step has come."""
        if self.plan is not None:
            return StepState.PLANNED
        if self.failure is not None:
            return StepState.FAILED
        return StepState.COLLECTING if self.submitted_at is None else StepState.SOLVING
