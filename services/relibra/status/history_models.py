"""The JSON schemas of the history of a job, an expert or a rank over steps, oldest first."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from relibra.planning import Phase
from relibra.planning.execution import Execution, PhaseSummary
from relibra.planning.plan import Prediction
from relibra.planning.summary import PlanTotals
from relibra.status.models import Shown
from relibra.status.savings import TokenTime, saving_of
from relibra.store import StepState, StepSummary
from relibra.store.step_summary import PlanBrief


def realised_imbalance(executed: Sequence[PhaseSummary]) -> float | None:
    """Return the imbalance of the last phase that all ranks have reported, or None."""
    realised = [each.imbalance for each in executed if each.imbalance is not None]
    return realised[-1] if realised else None


def speedup(prediction: Prediction, imbalance: float | None) -> float | None:
    """Return imbalance without balancing over `imbalance`: how many times less the slowest ranks compute."""
    return None if imbalance is None else prediction.imbalance_before / imbalance


class HistoryPoint(Shown):
    """One step of a job. Imbalance is slowest rank over mean rank: 1 is ideal, null is unknown."""

    step: int = Field(examples=[12])
    state: StepState = Field(examples=["planned"])
    imbalance_before: float | None = Field(None, description="Without balancing.", examples=[1.83])
    imbalance_after: float | None = Field(None, description="As planned.", examples=[1.012])
    imbalance_bound: float | None = Field(None, description="Lower bound under the plan's placement.", examples=[1.01])
    imbalance_floor: float | None = Field(None, description="Lower bound under any placement.", examples=[1.002])
    imbalance_realised: float | None = Field(
        description="As executed in the last phase that all ranks reported.", examples=[1.013]
    )
    speedup_planned: float | None = Field(
        None,
        description="Speed-up of expert computation: imbalance without balancing over planned imbalance.",
        examples=[1.8],
    )
    speedup_realised: float | None = Field(
        None,
        description="Imbalance without balancing over realised imbalance. Both count tokens, not seconds.",
        examples=[1.8],
    )
    saved_gpu_hours: float | None = Field(
        description="GPU-hours that balancing saved; `savings` of the job says what they rest on.",
        examples=[0.21],
    )
    published_at: datetime | None = None
    plan_latency_s: float | None = Field(None, description="Time from schedule to plan.", examples=[0.62])
    plan_wait_s: float | None = Field(description="Longest wait of a rank for the plan, in any phase.", examples=[0.02])
    reorder_s: float | None = Field(description="Longest reorder of a rank.", examples=[0.4])
    replica_wait_s: float | None = Field(
        description="Longest wait of a rank for replica transfers, in any phase.", examples=[0.03]
    )
    num_fallbacks: int = Field(description="Ranks that kept the previous placement, in the worst phase.", examples=[0])
    num_replicas: int | None = Field(None, examples=[4100])
    num_moved_experts: int | None = Field(None, examples=[24])
    is_complete: bool = Field(description="Whether all ranks have reported the update, which ends a step.")
    is_expired: bool = Field(description="Whether only this summary of the step remains.", examples=[False])

    @classmethod
    def of(cls, step: StepSummary, time: TokenTime | None) -> "HistoryPoint":
        """Return the point of one step of a job whose experts take this time."""
        executed = step.phases
        realised = realised_imbalance(executed)
        return cls(
            step=step.step,
            state=step.state,
            imbalance_realised=realised,
            plan_wait_s=max((each.plan_wait_s for each in executed), default=None),
            reorder_s=max((each.reorder_s for each in executed), default=None),
            replica_wait_s=max((each.replica_wait_s for each in executed), default=None),
            num_fallbacks=max((each.num_fallbacks for each in executed), default=0),
            saved_gpu_hours=saving_of(step, time).saved_gpu_hours,
            is_complete=any(each.phase is Phase.UPDATE and each.num_reports == each.num_expected for each in executed),
            is_expired=step.expired is not None,
            **({} if step.plan is None else _of_plan(step.plan, realised)),
        )


def _of_plan(plan: PlanBrief, realised: float | None) -> dict[str, Any]:
    # The model leaves out what a point does not show of the prediction.
    return asdict(plan.prediction) | {
        "speedup_planned": speedup(plan.prediction, plan.prediction.imbalance_after),
        "speedup_realised": speedup(plan.prediction, realised),
        "published_at": datetime.fromtimestamp(plan.published_at, tz=UTC),
        "plan_latency_s": plan.latency_s,
    }


class ExpertPoint(Shown):
    """One expert of one layer in one step, summed over micro-batches."""

    step: int = Field(examples=[12])
    home_rank: int = Field(examples=[3])
    load_tokens: int = Field(examples=[16_384])
    load_ratio: float = Field(description="Load over the mean expert load of the layer.", examples=[3.2])
    num_replicas: int = Field(examples=[40])

    @classmethod
    def of(cls, step: int, totals: PlanTotals, layer: int, expert: int) -> "ExpertPoint":
        """Return the point of one step."""
        load, mean = int(totals.load_LE[layer, expert]), float(totals.load_LE[layer].mean())
        return cls(
            step=step,
            home_rank=int(totals.home_rank_LE[layer, expert]),
            load_tokens=load,
            load_ratio=load / mean if mean else 0.0,
            num_replicas=int(totals.num_replicas_LE[layer, expert]),
        )


class RankPoint(Shown):
    """One EP rank in one step, summed over micro-batches and layers."""

    step: int = Field(examples=[12])
    mean_tokens: float = Field(description="Mean load of all ranks, the ideal.", examples=[98_304.0])
    before_tokens: int = Field(description="Without balancing.", examples=[180_000])
    after_tokens: int = Field(description="As planned.", examples=[99_000])
    realised_tokens: dict[Phase, int | None] = Field(description="As reported.", examples=[{"update": 99_010}])

    @classmethod
    def of(cls, step: int, totals: PlanTotals, rank: int, executed: list[Execution]) -> "RankPoint":
        """Return the point of one step."""
        return cls(
            step=step,
            mean_tokens=float(totals.after_LR.sum(dtype=int)) / totals.after_LR.shape[1],
            before_tokens=int(totals.before_LR[:, rank].sum()),
            after_tokens=int(totals.after_LR[:, rank].sum()),
            realised_tokens={each.phase: each.rank_tokens[rank] for each in executed},
        )
