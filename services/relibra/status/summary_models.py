"""The JSON schemas of what is left of an expired step, and the sentence that says why."""

from datetime import datetime

from pydantic import Field

from relibra.planning import Cause, Phase
from relibra.planning.plan import Prediction
from relibra.status.health import duration
from relibra.status.models import RoutingView, Shown, StepView, moment
from relibra.store import Expired, ExpiryCause, StepSummary

_WHY = {
    ExpiryCause.STEPS: "newer steps took its place (retained_steps)",
    ExpiryCause.BYTES: "the steps of the job took more memory than they may (retained_bytes)",
    ExpiryCause.AGE: "it was older than steps may get (retained_s)",
    ExpiryCause.ATTEMPTS: "newer attempts of the job began",
}


def expiry_text(expired: Expired, num_kept: int) -> str:
    """Say that only the summary of a step remains, why, and how many steps are kept in full."""
    return (
        f"full data expired after {duration(expired.age_s)}, because {_WHY[expired.cause]}; only this summary remains, "
        f"and {num_kept} steps are kept in full"
    )


class PhaseView(Shown):
    """What the ranks did in one phase of an expired step. See `ExecutionView` for fields of the same name."""

    phase: Phase
    num_expected: int = Field(examples=[64])
    num_reports: int = Field(examples=[64])
    num_applied: int = Field(examples=[64])
    num_fallbacks: int = Field(examples=[0])
    fallbacks: dict[Cause, int] = Field(examples=[{"late": 2}])
    imbalance: float | None = Field(examples=[1.012])
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float
    reorder_s: float
    replica_wait_s: float
    duration_s: float
    num_processes: int
    num_token_copies: int | None
    routing: RoutingView


class SummaryView(Shown):
    """The summary of an expired step."""

    text: str = Field(description="When and why the full data expired, and how many steps are kept in full.")
    expired_at: datetime
    cause: ExpiryCause = Field(examples=["bytes"])
    num_tokens: int | None = Field(description="Tokens of the step; null without a plan.", examples=[2_097_152])
    plan_id: str | None = Field(examples=["5f3c0a9be1d24c77.12"])
    prediction: Prediction | None
    published_at: datetime | None
    latency_s: float | None = Field(description="Time from schedule to plan.", examples=[0.62])
    phases: list[PhaseView]


class StepOrSummaryView(StepView):
    """The state of a step, or what is left of it."""

    is_expired: bool = Field(description="Whether only `summary` remains of the step.", examples=[False])
    summary: SummaryView | None = Field(description="Null while the full data of the step is kept.")

    @classmethod
    def show(cls, step: StepView) -> "StepOrSummaryView":
        """Return the view of a step whose full data is kept."""
        return cls(**dict(step), is_expired=False, summary=None)

    @classmethod
    def of_expired(cls, step: StepSummary, expired: Expired, num_kept: int) -> "StepOrSummaryView":
        """Return the view of an expired step."""
        plan = step.plan
        return cls(
            step=step.step,
            state=step.state,
            num_sequences=step.num_sequences,
            policies={},
            scheduled_at=None if step.submitted_at is None else moment(step.submitted_at),
            failure=step.failure,
            plan=None,
            is_expired=True,
            summary=SummaryView(
                text=expiry_text(expired, num_kept),
                expired_at=moment(expired.at),
                cause=expired.cause,
                num_tokens=step.num_tokens,
                plan_id=None if plan is None else str(plan.id),
                prediction=None if plan is None else plan.prediction,
                published_at=None if plan is None else moment(plan.published_at),
                latency_s=None if plan is None else plan.latency_s,
                phases=[PhaseView.model_validate(each, from_attributes=True) for each in step.phases],
            ),
        )
