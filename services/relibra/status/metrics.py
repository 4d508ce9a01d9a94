"""Prometheus metrics, computed from the store at each scrape: any replica of the service shows the same."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from relibra.store import PlanRecord, Store

CONTENT_TYPE = CONTENT_TYPE_LATEST


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """What one job contributes."""

    job_id: str
    num_planned_steps: int
    num_pending_steps: int
    latest_plan: PlanRecord | None


async def read_figures(store: Store) -> list[JobFigures]:
    """Read the figures of all jobs."""
    pending = [each.job_id for each in await store.pending_steps()]
    return [
        JobFigures(
            job_id=job.job_id,
            num_planned_steps=await store.num_planned_steps(job.job_id),
            num_pending_steps=pending.count(job.job_id),
            latest_plan=await store.latest_plan(job.job_id),
        )
        for job in await store.list_jobs()
    ]


def render(figures: Iterable[JobFigures]) -> bytes:
    """Return the figures in the Prometheus text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(list(figures)))
    return generate_latest(registry)


class _Collector:
    def __init__(self, figures: list[JobFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("relibra_jobs", "Registered jobs.", value=len(self._figures))
        planned = CounterMetricFamily("relibra_steps_planned", "Steps with a published plan.", labels=["job_id"])
        pending = GaugeMetricFamily("relibra_steps_pending", "Steps that wait for their plan.", labels=["job_id"])
        imbalance = GaugeMetricFamily(
            "relibra_plan_imbalance_ratio",
            "Slowest rank over mean rank in the newest plan: before (no balancing), after, and the bound of this plan.",
            labels=["job_id", "when"],
        )
        for each in self._figures:
            planned.add_metric([each.job_id], each.num_planned_steps)
            pending.add_metric([each.job_id], each.num_pending_steps)
            if each.latest_plan:
                forecast = each.latest_plan.forecast
                imbalance.add_metric([each.job_id, "before"], forecast.imbalance_before)
                imbalance.add_metric([each.job_id, "after"], forecast.imbalance_after)
                imbalance.add_metric([each.job_id, "bound"], forecast.imbalance_bound)
        yield from (jobs, planned, pending, imbalance)
