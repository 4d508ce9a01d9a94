"""The JSON of the status service.

Plan ids are text, `<epoch in 16 hex digits>.<version>`: epochs are too large for the numbers of JavaScript.
M rows (EP groups x micro-batches), L MoE layers, E experts, R EP ranks.
"""

from datetime import UTC, datetime
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from relibra.planning import Cluster, ExecutionReport, Model, Phase, Plan, PlanParams
from relibra.planning.plan import Forecast
from relibra.store import JobRecord, PlanRecord, StepRecord, StepState


class _Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class Health(_Shown):
    """That the process answers."""

    status: Literal["ok"] = "ok"


class JobView(_Shown):
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


class PlanSummary(_Shown):
    """A published plan without its arrays."""

    id: str = Field(examples=["5f3c0a9be1d24c77.12"])
    step: int = Field(examples=[12])
    digest: str = Field(description="SHA-256 of the whole plan, equal on every rank.", examples=["9f86d081884c7d65..."])
    reason: str = Field(description="Why this plan is what it is.")
    forecast: Forecast
    published_at: datetime

    @classmethod
    def of(cls, plan: PlanRecord) -> "PlanSummary":
        """Show a plan."""
        return cls(
            id=str(plan.id),
            step=plan.step,
            digest=plan.digest.hex(),
            reason=plan.reason,
            forecast=plan.forecast,
            published_at=_time(plan.published_at),
        )


class StepView(_Shown):
    """How far a step has come."""

    step: int = Field(examples=[12])
    state: StepState = Field(examples=["planned"])
    num_sequences: int = Field(description="Sequences reported so far.", examples=[512])
    scheduled_at: datetime | None = Field(description="When the schedule came, while the step is being solved.")
    failure: str | None = Field(description="Why the step cannot be planned.", examples=[None])
    plan: PlanSummary | None

    @classmethod
    def of(cls, step: StepRecord) -> "StepView":
        """Show a step."""
        return cls(
            step=step.step,
            state=step.state,
            num_sequences=step.num_sequences,
            scheduled_at=None if step.submitted_at is None else _time(step.submitted_at),
            failure=step.failure,
            plan=None if step.plan is None else PlanSummary.of(step.plan),
        )


class CellsView(_Shown):
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
    def show(cls, record: PlanRecord, plan: Plan) -> "PlanView":
        """Show a plan with its cells."""
        shape_ML = (plan.num_rows, plan.model.num_layers)
        num_replicas_ML = np.zeros(shape_ML, dtype=np.int64)
        row_Q, layer_Q = plan.quota_index_Q4[plan.is_replica_Q, :2].T
        np.add.at(num_replicas_ML, (row_Q, layer_Q), 1)
        loads_MLR = plan.rank_loads_MLR
        return cls(
            **dict(PlanSummary.of(record)),
            num_micro_batches=plan.schedule.num_micro_batches,
            home_rank=plan.home_rank_LE.tolist(),
            cells=CellsView(
                slowest_rank_tokens=loads_MLR.max(axis=-1).tolist(),
                mean_rank_tokens=loads_MLR.mean(axis=-1).round(1).tolist(),
                lower_bound_tokens=plan.lower_bound_ML.round(1).tolist(),
                num_replicas=num_replicas_ML.tolist(),
            ),
        )


class ReportView(_Shown):
    """What one rank did in one phase of a step."""

    phase: Phase
    ep_group: int = Field(examples=[0])
    ep_rank: int = Field(examples=[3])
    applied: str | None = Field(
        description="Id of the applied plan; null where the rank kept the previous placement without replicas.",
        examples=["5f3c0a9be1d24c77.12"],
    )
    reason: str = Field(description="Why this plan, or why none.")
    realised_tokens: list[list[int]] = Field(
        description="`[micro_batch][layer]`: token copies this rank computed.", examples=[[[1029, 1033]]]
    )
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float

    @classmethod
    def of(cls, report: ExecutionReport) -> "ReportView":
        """Show a report."""
        return cls(
            phase=report.phase,
            ep_group=report.ep_group,
            ep_rank=report.ep_rank,
            applied=None if report.applied is None else str(report.applied),
            reason=report.reason,
            realised_tokens=report.realised_load_ML.tolist(),
            reorder_sent_bytes=report.reorder_sent_bytes,
            replica_sent_bytes=report.replica_sent_bytes,
            plan_wait_s=report.plan_wait_s,
        )


def _time(unix_time_s: float) -> datetime:
    return datetime.fromtimestamp(unix_time_s, tz=UTC)
