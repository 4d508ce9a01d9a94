"""The JSON of the status service.

Plan ids are text, `<epoch in 16 hex digits>.<version>`: epochs are too large for the numbers of JavaScript.
M rows (EP groups x micro-batches), L MoE layers, E experts, R EP ranks.
"""

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from relibra.planning import Cause, Cluster, ExecutionReport, Model, Phase, PlanParams
from relibra.planning.execution_sum import Execution
from relibra.planning.plan import Prediction
from relibra.status.figures import PlanFigures
from relibra.status.health import JobHealth
from relibra.store import JobRecord, PlanRecord, StepRecord, StepState


class Shown(BaseModel):
    """Something the service shows."""

    model_config = ConfigDict(frozen=True)


class ProbeResult(Shown):
    """The answer to a liveness or readiness probe."""

    status: Literal["ok"] = "ok"


class JobView(Shown):
    """A registered job."""

    job_id: str = Field(examples=["qwen3-rl"])
    epoch: str = Field(description="Names this incarnation of the job.", examples=["5f3c0a9be1d24c77"])
    registered_at: datetime
    model: Model
    cluster: Cluster
    params: PlanParams

    @classmethod
    def of(cls, job: JobRecord) -> "JobView":
        """Show a job."""
        return cls(
            job_id=job.job_id,
            epoch=f"{job.epoch:016x}",
            registered_at=_time(job.registered_at),
            model=job.model,
            cluster=job.cluster,
            params=job.params,
        )


class JobHealthView(JobView):
    """A registered job, and whether it is well."""

    health: JobHealth

    @classmethod
    def show(cls, job: JobRecord, health: JobHealth) -> "JobHealthView":
        """Show a job with its health."""
        return cls(**dict(JobView.of(job)), health=health)


class PlanSummary(Shown):
    """A published plan without its arrays."""

    id: str = Field(examples=["5f3c0a9be1d24c77.12"])
    step: int = Field(examples=[12])
    digest: str = Field(description="SHA-256 of the whole plan, equal on every rank.", examples=["9f86d081884c7d65..."])
    reason: str = Field(description="Why this plan is what it is.")
    prediction: Prediction
    published_at: datetime
    latency_s: float | None = Field(
        description="From schedule to plan: waiting for a solver, solving, publishing.", examples=[0.62]
    )

    @classmethod
    def of(cls, plan: PlanRecord) -> "PlanSummary":
        """Show a plan."""
        return cls(
            id=str(plan.id),
            step=plan.step,
            digest=plan.digest.hex(),
            reason=plan.reason,
            prediction=plan.prediction,
            published_at=_time(plan.published_at),
            latency_s=plan.latency_s,
        )


class StepView(Shown):
    """How far a step has come."""

    step: int = Field(examples=[12])
    state: StepState = Field(examples=["planned"])
    num_sequences: int = Field(description="Sequences reported so far.", examples=[512])
    policies: dict[str, int] = Field(
        description="`<first>-<last>` policy version -> sequences those versions generated, where reporters told.",
        examples=[{"11-11": 500, "10-11": 12}],
    )
    scheduled_at: datetime | None = Field(description="When the schedule came.")
    failure: str | None = Field(description="Why the step cannot be planned.", examples=[None])
    plan: PlanSummary | None

    @classmethod
    def of(cls, step: StepRecord) -> "StepView":
        """Show a step."""
        return cls(
            step=step.step,
            state=step.state,
            num_sequences=step.num_sequences,
            policies=step.policies,
            scheduled_at=None if step.submitted_at is None else _time(step.submitted_at),
            failure=step.failure,
            plan=None if step.plan is None else PlanSummary.of(step.plan),
        )


class CellsView(Shown):
    """One number a cell, as `[row][layer]`; row = ep_group * num_micro_batches + micro_batch."""

    slowest_rank_tokens: list[list[int]] = Field(examples=[[[1031, 1040]]])
    mean_rank_tokens: list[list[float]] = Field(examples=[[[1024.0, 1024.0]]])
    lower_bound_tokens: list[list[float]] = Field(
        description="No plan with this placement and these slots makes the slowest rank faster.",
        examples=[[[1024.0, 1036.0]]],
    )
    num_replicas: list[list[int]] = Field(examples=[[[9, 7]]])


class PlanView(PlanSummary):
    """A published plan."""

    num_micro_batches: int = Field(examples=[32])
    home_rank: list[list[int]] = Field(
        description="`[layer][expert]`: the rank that owns it.", examples=[[[0, 0, 1, 1]]]
    )
    cells: CellsView

    @classmethod
    def show(cls, record: PlanRecord, figures: PlanFigures) -> "PlanView":
        """Show a plan with its cells."""
        return cls(
            **dict(PlanSummary.of(record)),
            num_micro_batches=figures.plan.schedule.num_micro_batches,
            home_rank=figures.plan.home_rank_LE.tolist(),
            cells=CellsView(
                slowest_rank_tokens=figures.after_MLR.max(axis=-1).tolist(),
                mean_rank_tokens=figures.after_MLR.mean(axis=-1).round(1).tolist(),
                lower_bound_tokens=figures.plan.lower_bound_ML.round(1).tolist(),
                num_replicas=figures.num_replicas_ML.tolist(),
            ),
        )


class ReportView(Shown):
    """What one rank did in one phase of a step."""

    phase: Phase
    ep_group: int = Field(examples=[0])
    ep_rank: int = Field(examples=[3])
    applied: str | None = Field(
        description="Id of the applied plan; null where the rank kept the previous placement without replicas.",
        examples=["5f3c0a9be1d24c77.12"],
    )
    reason: str = Field(description="Why this plan, or why none, in the agent's words.")
    causes: list[Cause] = Field(
        description="Why the rank kept the previous placement; empty where it applied a plan.", examples=[["late"]]
    )
    realised_tokens: list[list[int]] | None = Field(
        description="`[micro_batch][layer]`: token copies this rank computed; null unless `realised` asks for them.",
        examples=[[[1029, 1033]]],
    )
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float
    reorder_s: float
    replica_wait_s: float

    @classmethod
    def of(cls, report: ExecutionReport, *, with_realised: bool) -> "ReportView":
        """Show a report."""
        return cls(
            phase=report.phase,
            ep_group=report.ep_group,
            ep_rank=report.ep_rank,
            applied=None if report.applied is None else str(report.applied),
            reason=report.reason,
            causes=list(report.causes),
            realised_tokens=report.realised_load_ML.tolist() if with_realised else None,
            reorder_sent_bytes=report.reorder_sent_bytes,
            replica_sent_bytes=report.replica_sent_bytes,
            plan_wait_s=report.plan_wait_s,
            reorder_s=report.reorder_s,
            replica_wait_s=report.replica_wait_s,
        )


class ExecutionView(Shown):
    """What all ranks did in one phase of a step."""

    phase: Phase
    num_expected: int = Field(description="Ranks of all EP groups.", examples=[64])
    num_reports: int = Field(examples=[64])
    missing: list[tuple[int, int]] = Field(description="(EP group, rank) without a report.", examples=[[[0, 17]]])
    num_applied: int = Field(description="Ranks that executed the plan.", examples=[64])
    num_fallbacks: int = Field(description="Ranks that kept the previous placement.", examples=[2])
    fallbacks: dict[Cause, int] = Field(
        description="Those ranks by cause; a rank with two causes counts under both.", examples=[{"late": 2}]
    )
    reasons: list[str] = Field(description="What those ranks say; the first few.")
    imbalance: float | None = Field(description="Realised; null until all ranks have reported.", examples=[1.012])
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float = Field(description="Of the rank that waited longest for the plan.")
    reorder_s: float = Field(description="Of the rank whose reorder took longest.")
    replica_wait_s: float = Field(
        description="Of the rank that waited longest for replicas and their gradients to travel."
    )

    @classmethod
    def of(cls, execution: Execution) -> "ExecutionView":
        """Show what ranks did."""
        return cls(
            phase=execution.phase,
            num_expected=execution.num_expected,
            num_reports=execution.num_reports,
            missing=list(execution.missing),
            num_applied=execution.num_applied,
            num_fallbacks=execution.num_fallbacks,
            fallbacks=execution.fallbacks,
            reasons=list(execution.reasons),
            imbalance=execution.imbalance,
            reorder_sent_bytes=execution.reorder_sent_bytes,
            replica_sent_bytes=execution.replica_sent_bytes,
            plan_wait_s=execution.plan_wait_s,
            reorder_s=execution.reorder_s,
            replica_wait_s=execution.replica_wait_s,
        )


def _time(unix_time_s: float) -> datetime:
    return datetime.fromtimestamp(unix_time_s, tz=UTC)
