"""The records that go into the store and come out of it; nothing here knows Redis.

L layers, E experts.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from relibra.planning import Cluster, Model, Plan, PlanId, PlanParams
from relibra.planning.plan import Level, Prediction
from relibra.store.plan_codec import encode_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as one of its attempts registered it."""

    job_id: str
    epoch: int
    """The epoch of the attempt. Its sequences, schedules, plans and reports are kept under it."""
    began_at: float
    """Unix time in seconds when the attempt was registered."""
    model: Model
    cluster: Cluster
    params: PlanParams
    number: int = 1
    """The number of the attempt within the job, 1, 2, 3, ..., for people."""
    owner: str = ""
    """`<host>:<pid>` of the process that registered the attempt; empty if it did not say."""
    token_hash: str = field(default="", repr=False)
    """`Launch.token_hash` of the launch that began the attempt."""


_LAST_REPORTS_S = 60.0
"""How long reports may still come after a training told that it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(JobRecord):
    """One launch of a job's training, or what follows after it went back to an earlier step, and how it ended."""

    ended_at: float | None
    """Unix time in seconds when the next attempt began; None for the current attempt."""
    heard_at: float | None
    """When a process that named this attempt last called a planner, by the clock of Redis; None if that is unknown."""
    finished_at: float | None = None
    """When its training told a planner that it ends, by the clock of Redis; None if it never did."""
    rolled_back_from: int | None = None
    """The epoch of the attempt before, if the same launch went on with an earlier step; None for a launch's first."""
    rolled_back_to: int | None = None
    """The step it went back to; earlier ones stay with the attempt before."""

    @property
    def has_finished(self) -> bool:
        """Whether its training ended. Last reports may come later, but a training that still calls has not ended."""
        return self.finished_at is not None and (self.heard_at or 0.0) - self.finished_at < _LAST_REPORTS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceCounts:
    """The counts of one sequence, which the store keeps under (job, attempt, step, sequence id)."""

    job_id: str
    epoch: int
    """The attempt that the sequence belongs to."""
    step: int | None
    """None if it is not known yet: then the first step whose schedule names the sequence claims it."""
    sequence_id: str
    counts_LE: NDArray[np.unsignedinteger]
    """In the narrowest unsigned dtype that holds them."""
    policies: str = ""
    """`<first>-<last>` version of the policy that generated the sequence; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How much Redis keeps of one job (S7)."""

    max_step_size_bytes: int = 3 << 30
    """How much the sequences and reports of one step may take in Redis, with their names."""
    max_reports_size_bytes: int = 256 << 20
    """How much the reports of one step may take in Redis; readers of a step go through all of them."""
    max_open_steps: int = 16
    """How many steps may have sequences and no plan yet; as many may have a schedule and no plan."""
    max_sequences: int = 1 << 18
    """How many sequences may be reported for one step."""


DEFAULT_LIMITS = StoreLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingStep:
    """A step that has its schedule and waits for its plan."""

    job_id: str
    step: int
    submitted_at: float
    is_leased: bool = False
    """Whether some planner solves a step of this job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to publish the plan of one step, for as long as it is renewed."""

    job_id: str
    step: int
    epoch: int
    token: int
    """The fencing token, which rises with every lease of the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedPlan:
    """A checked plan in the form that is published, small enough to travel between processes."""

    digest: bytes
    level: Level
    reason: str
    fields: dict[str, bytes]
    """The fields of `plan_codec`."""

    @classmethod
    def of(cls, plan: Plan) -> "EncodedPlan":
        """Encode a plan."""
        return cls(digest=plan.digest, level=plan.prediction.level, reason=plan.reason, fields=encode_plan(plan))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """A published plan without its arrays."""

    id: PlanId
    """`<epoch in 16 hex digits>.<version>`."""
    step: int
    digest: bytes = b""
    """SHA-256 of the whole plan, equal on every rank; empty in the summary of an expired step."""
    reason: str = ""
    """What each part of planning did, in a sentence; empty in the summary of an expired step."""
    prediction: Prediction
    submitted_at: float | None
    """Unix time of the schedule; None if the writer did not record it."""
    published_at: float

    @property
    def latency_s(self) -> float | None:
        """The time from schedule to plan: waiting for a solver, solving, publishing; in seconds."""
        return None if self.submitted_at is None else max(0.0, self.published_at - self.submitted_at)


class StepState(StrEnum):
    """How far a step has come."""

    UNSCHEDULED = "unscheduled"
    """Nobody has scheduled the step or reported its sequences; ranks use the newest plan from history, if any."""
    COLLECTING = "collecting"
    """Sequences are reported; there is no schedule yet."""
    QUEUED = "queued"
    """It waits for a solver."""
    SOLVING = "solving"
    PLANNED = "planned"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The state of a step."""

    step: int
    num_sequences: int
    """The number of sequences reported so far."""
    policies: dict[str, int]
    """`<first>-<last>` policy version -> number of sequences that they generated; untagged sequences are left out."""
    submitted_at: float | None
    """Unix time since when the step waits for its plan; None before that and after the step failed."""
    plan: PlanRecord | None
    failure: str | None
    """Why the step cannot be planned; None if it can."""
    level: Level | None = None
    """What its plan is made from; None before that is known."""
    is_leased: bool = False
    """Whether a planner solves the step."""

    @property
    def is_awaited(self) -> bool:
        """Whether a plan will follow, or will be replaced by a better one, that ranks should wait for."""
        is_scheduled = self.level is not None and self.level is not Level.HISTORY
        return self.plan is None and self.failure is None and (is_scheduled or self.num_sequences > 0)

    @property
    def state(self) -> StepState:
        """How far the step has come."""
        if self.plan is not None:
            return StepState.PLANNED
        if self.failure is not None:
            return StepState.FAILED
        if self.submitted_at is not None:
            return StepState.SOLVING if self.is_leased else StepState.QUEUED
        return StepState.COLLECTING if self.num_sequences else StepState.UNSCHEDULED


class Refused(StrEnum):
    """What the planner may refuse: first what a step needs, in that order, then what belongs to no step."""

    SEQUENCES = "sequences"
    SCHEDULE = "schedule"
    REPORTS = "reports"
    """Execution reports: of a step that has expired (error `NotFound`), or refused for what they hold."""
    LAUNCH = "launch"
    """An older launch under the same job id, which still calls though its attempt is over; its step is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The newest refusal of one kind."""

    what: Refused
    since_step: int
    """The first step refused since a schedule was last accepted."""
    step: int
    """The step refused last."""
    error: str
    """The name of the error in the exception tree, for example `Conflict`."""
    text: str
    """The error message, for people."""
    at: float
    """Unix time in seconds."""


class PackingState(StrEnum):
    """How far a packing has come."""

    QUEUED = "queued"
    """It waits for a solver."""
    PACKING = "packing"
    PACKED = "packed"
    REFUSED = "refused"
    """The driver was given none, and trains with the schedule of its framework."""


_HEADLINES = {
    PackingState.QUEUED: "waits for a solver to pack it",
    PackingState.PACKING: "is being packed",
    PackingState.PACKED: "was packed",
    PackingState.REFUSED: "was not packed and keeps the schedule of its framework",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingNote:
    """How far the newest packing of an attempt has come. It stays as it is if its planner is killed."""

    step: int
    """The step that it is for."""
    state: PackingState
    text: str
    """What packing gains, or why there is none, for people; empty before it ended."""
    at: float
    """Unix time in seconds."""

    @property
    def is_open(self) -> bool:
        """Whether the packing waits or is under way."""
        return self.state in (PackingState.QUEUED, PackingState.PACKING)

    @property
    def headline(self) -> str:
        """How far the packing has come, for people."""
        return f"Step {self.step} {_HEADLINES[self.state]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A bearer token without its secret."""

    token_id: str
    job_id: str
    """The job, or the scope of the token (`tokens.covers`)."""
    role: str
    created_at: float
    expires_at: float | None
    """Unix times in seconds."""
