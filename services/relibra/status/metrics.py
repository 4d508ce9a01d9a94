"""Prometheus metrics, computed from the store at each scrape, so that every replica reports the same values."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fastapi import Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from relibra.planning import Cause
from relibra.planning.execution import INTENDED
from relibra.planning.plan import Level
from relibra.status.access import Viewer
from relibra.status.balance import NUM_JUDGED, Obstacle
from relibra.status.context import Context
from relibra.status.glance import JobGlance
from relibra.status.health import JobState
from relibra.status.reader import Reader
from relibra.status.refusals import Bound
from relibra.status.step_figures import PHASE_FIGURES
from relibra.store import JobRecord, PlanRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """The figures of one job."""

    glance: JobGlance
    num_planned_steps: int
    num_pending_steps: int
    latest_plan: PlanRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFigures:
    """The figures of the service itself."""

    num_viewers: int
    num_cached_plans: int
    num_refused: Mapping[Bound, int]


async def read_figures(reader: Reader, jobs: Iterable[JobRecord]) -> list[JobFigures]:
    """Read the figures of some jobs."""
    store = reader.store
    pending = Counter(step.job_id for step in await store.pending_steps())
    return [
        JobFigures(
            glance=glance,
            num_planned_steps=await store.num_planned_steps(glance.job),
            num_pending_steps=pending[glance.job.job_id],
            latest_plan=await reader.latest_plan(glance.job),
        )
        for glance in await reader.glances(jobs)
    ]


async def scrape(context: Context, viewer: Viewer) -> Response:
    """Return the metrics of the jobs that `viewer` may see, and of the service itself."""
    jobs = [job for job in await context.store.list_jobs() if viewer.may_see(job.job_id)]
    figures = await read_figures(context.reader, jobs)
    own = OwnFigures(
        num_viewers=context.live.num_viewers,
        num_cached_plans=context.reader.num_cached_plans,
        num_refused=context.refusals.counts,
    )
    return Response(render(figures, own), media_type=CONTENT_TYPE_LATEST)


def render(figures: Iterable[JobFigures], own: OwnFigures) -> bytes:
    """Return the figures in the Prometheus text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(list(figures), own))
    return generate_latest(registry)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"relibra_{name}", text, labels=labels)


class _Collector:
    def __init__(self, figures: list[JobFigures], own: OwnFigures) -> None:
        self._figures = figures
        self._own = own

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("relibra_jobs", "Registered jobs.", value=len(self._figures))
        yield GaugeMetricFamily("relibra_status_viewers", "Open pages.", value=self._own.num_viewers)
        yield GaugeMetricFamily(
            "relibra_status_cached_plans", "Decoded plans in memory.", value=self._own.num_cached_plans
        )
        refused = CounterMetricFamily(
            "relibra_status_refused",
            "Requests, viewers and connections refused because of a setting.",
            labels=["setting"],
        )
        for bound in Bound:
            refused.add_metric([bound], self._own.num_refused.get(bound, 0))
        yield refused
        yield from self._attempts()
        yield from self._health()
        yield from self._plans()
        yield from self._executions()
        yield from self._savings()

    def _savings(self) -> Iterator[Metric]:
        saved = _gauge(
            "saved_gpu_hours",
            "GPU-hours that balancing saved in all kept steps; absent while unknown. /v1/jobs says what they rest on.",
            "job_id",
        )
        lost = _gauge("lost_gpu_hours", "GPU-hours that ranks waited for the slowest rank of each cell.", "job_id")
        trained = _gauge("training_gpu_hours", "GPU-hours of the phases that saved_gpu_hours is about.", "job_id")
        left_out = _gauge("steps_without_savings", "Reported steps that saved_gpu_hours leaves out.", "job_id")
        for job in self._figures:
            names, saving = [job.glance.job_id], job.glance.savings
            if saving.saved_gpu_hours is not None:
                saved.add_metric(names, saving.saved_gpu_hours)
            if saving.lost_gpu_hours is not None:
                lost.add_metric(names, saving.lost_gpu_hours)
            trained.add_metric(names, saving.trained_s / 3600)
            left_out.add_metric(names, saving.num_left_out)
        yield from (saved, lost, trained, left_out)

    def _attempts(self) -> Iterator[Metric]:
        number = _gauge("job_attempt", "The number of the current attempt; it rises with every restart.", "job_id")
        began = _gauge("job_attempt_began_timestamp_seconds", "When the current attempt began.", "job_id")
        heard = _gauge("job_heard_timestamp_seconds", "When a trainer of the job last called a planner.", "job_id")
        for job in self._figures:
            attempt = job.glance.choice.chosen
            number.add_metric([attempt.job_id], attempt.number)
            began.add_metric([attempt.job_id], attempt.began_at)
            if attempt.heard_at is not None:
                heard.add_metric([attempt.job_id], attempt.heard_at)
        yield from (number, began, heard)

    def _health(self) -> Iterator[Metric]:
        health = _gauge("job_health", "1 for the state of the job, 0 for the other states.", "job_id", "verdict")
        for job in self._figures:
            for verdict in JobState:
                health.add_metric([job.glance.job_id, verdict], verdict is job.glance.health.verdict)
        yield health
        not_balancing = _gauge(
            "not_balancing", "1 for why the newest steps ran without a plan, 0 otherwise.", "job_id", "obstacle"
        )
        since = _gauge("not_balancing_since_step", "The first of the newest steps in a row without a plan.", "job_id")
        without = _gauge("steps_without_plan", "How many of the newest executed steps ran without a plan.", "job_id")
        executed = _gauge("steps_executed_recently", f"The newest executed steps, at most {NUM_JUDGED}.", "job_id")
        for job in self._figures:
            job_id, balance = job.glance.job_id, job.glance.balance
            for obstacle in Obstacle:
                not_balancing.add_metric([job_id, obstacle], obstacle is balance.obstacle)
            if balance.since_step is not None:
                since.add_metric([job_id], balance.since_step)
            without.add_metric([job_id], balance.num_without_plan)
            executed.add_metric([job_id], balance.num_executed)
        yield from (not_balancing, since, without, executed)

    def _plans(self) -> Iterator[Metric]:
        planned = CounterMetricFamily("relibra_steps_planned", "Steps with a published plan.", labels=["job_id"])
        pending = _gauge("steps_pending", "Steps waiting for their plan.", "job_id")
        latency = _gauge("plan_latency_seconds", "Time from schedule to plan, for the newest plan.", "job_id")
        published = _gauge("plan_published_timestamp_seconds", "When the newest plan was published.", "job_id")
        imbalance = _gauge(
            "plan_imbalance_ratio",
            "Slowest rank over mean rank as the newest plan expects it: before (no balancing), after, the bound of its "
            "placement, and the floor of any placement.",
            "job_id",
            "when",
        )
        level = _gauge("plan_level", "1 for what the newest plan was made from, 0 otherwise.", "job_id", "level")
        size = _gauge(
            "plan_transfer_bytes",
            "Bytes that the newest plan transfers; absent where the job registered no sizes.",
            "job_id",
            "kind",
        )
        for job in self._figures:
            job_id = job.glance.job_id
            planned.add_metric([job_id], job.num_planned_steps)
            pending.add_metric([job_id], job.num_pending_steps)
            if plan := job.latest_plan:
                published.add_metric([job_id], plan.published_at)
                if plan.latency_s is not None:
                    latency.add_metric([job_id], plan.latency_s)
                for known in Level:
                    level.add_metric([job_id, known], known is plan.prediction.level)
                for when in ("before", "after", "bound", "floor"):
                    imbalance.add_metric([job_id, when], getattr(plan.prediction, f"imbalance_{when}"))
                for kind in ("reorder", "replica"):
                    size_bytes = getattr(plan.prediction, f"{kind}_size_bytes")
                    if size_bytes is not None:
                        size.add_metric([job_id, kind], size_bytes)
        yield from (planned, pending, latency, published, level, imbalance, size)

    def _executions(self) -> Iterator[Metric]:
        labels = ("job_id", "phase")
        step = _gauge("executed_step", "The newest step that has reports; execution metrics are for it.", "job_id")
        missing = _gauge("missing_reports", "Ranks that have not reported yet.", *labels)
        fallbacks = _gauge(
            "fallback_ranks", "Ranks that kept the last plan though another was due, by cause.", *labels, "cause"
        )
        intended = _gauge("intended_ranks", "Ranks that were to apply no plan, by cause.", *labels, "cause")
        damaged = _gauge("damaged_steps", "Newest steps with a report that is not the one that was stored.", "job_id")
        measured = {
            figure.metric: _gauge(figure.metric, _MEASURED[figure.metric], *labels, *(["kind"] if figure.label else []))
            for figure in PHASE_FIGURES
            if figure.metric
        }
        expected = _gauge(
            "expected_imbalance_ratio",
            "What the plan that ranks applied in the executed step expects; below level micro-batches, a forecast.",
            "job_id",
            "level",
        )
        for job in self._figures:
            job_id = job.glance.job_id
            damaged.add_metric([job_id], len(job.glance.damaged))
            if job.glance.applied is not None:
                prediction = job.glance.applied.prediction
                expected.add_metric([job_id, prediction.level], prediction.imbalance_after)
            if job.glance.executed_step is not None:
                step.add_metric([job_id], job.glance.executed_step.step)
            for execution in job.glance.executed:
                names = [job_id, execution.phase]
                missing.add_metric(names, len(execution.missing))
                for cause in INTENDED:
                    intended.add_metric([*names, cause], execution.intended.get(cause, 0))
                for cause in Cause:
                    fallbacks.add_metric([*names, cause], execution.fallbacks.get(cause, 0))
                for figure in PHASE_FIGURES:
                    value = getattr(execution, figure.field)
                    if figure.metric and value is not None:
                        measured[figure.metric].add_metric([*names, *([figure.label] if figure.label else [])], value)
        yield from (step, missing, fallbacks, intended, damaged, expected, *measured.values())


_MEASURED = {
    "plain_imbalance_ratio": "The same without relibra, from the loads of a few micro-batches.",
    "plain_overload_factor": "Hottest rank over mean rank without relibra, in the worst cell of a few micro-batches.",
    "realised_imbalance_ratio": "Slowest rank over mean rank, once all ranks have reported.",
    "phase_seconds": "Longest phase of a rank, without its wait for the plan and the reorder.",
    "plan_wait_seconds": "Longest wait of a rank for the plan.",
    "sent_bytes": "Bytes sent by all ranks together.",
    "transfer_seconds": "Longest reorder of a rank, or its longest wait for replicas.",
}
