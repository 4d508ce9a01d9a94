"""Prometheus metrics, computed from the store at each scrape, so that every replica reports the same values."""

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi import Response
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from relibra import service_log
from relibra.errors import Corrupt
from relibra.planning import Cause
from relibra.planning.execution import INTENDED
from relibra.planning.plan import Level
from relibra.status.access import Viewer
from relibra.status.attempts import AttemptChoice
from relibra.status.balance import NUM_JUDGED, Obstacle
from relibra.status.broken_jobs import of_jobs
from relibra.status.context import Context
from relibra.status.glance import JobGlance
from relibra.status.health import JobState
from relibra.status.refusals import Bound
from relibra.status.step_figures import PHASE_FIGURES
from relibra.store import ALL_JOBS, PackingState, PlanRecord, TokenRecord

_LIVE_S = 3600.0


async def scrape(context: Context, viewer: Viewer) -> Response:
    """Return the metrics of the jobs that `viewer` may see and of the service itself, in the Prometheus text format."""
    reader, store = context.reader, context.store
    pending = Counter(step.job_id for step in (await store.pending_steps())[0])

    async def read(choice: AttemptChoice) -> tuple[JobGlance, int, PlanRecord | None]:
        job = choice.job
        return await reader.glance(choice), await store.num_planned_steps(job), await reader.latest_plan(job)

    jobs, broken = await of_jobs(store, viewer, read)
    families = _Families()
    gauge = families.gauge
    gauge("jobs", "Registered jobs.", len(jobs) + len(broken))
    gauge("status_viewers", "Open pages.", context.live.num_viewers)
    errors = "Errors with a traceback in the log since this instance started."
    gauge("status_unexpected_errors", errors, service_log.unexpected.number)
    offset = "How much the clock of this instance is ahead of that of Redis."
    gauge("status_clock_offset_seconds", offset, (await store.server_state()).clock_offset_s)
    live = {glance.job_id for glance, *_ in jobs if _is_live(glance)}
    with contextlib.suppress(Corrupt):  # planners are not ready then, and say so
        tokens = [token for token in (await store.list_tokens())[0] if viewer.may_see(token.job_id)]
        families.tell_tokens([token for token in tokens if token.job_id in live or token.job_id.endswith(ALL_JOBS)])
    refused = "Requests, viewers and connections refused because of a setting."
    for bound in Bound:
        families.counter("status_refused", refused, context.refusals.counts[bound], setting=bound)
    for job_id, is_broken in [*((glance.job_id, 0) for glance, *_ in jobs), *((job.job_id, 1) for job in broken)]:
        gauge("job_broken", "1 for a job that cannot be read, which has no other metrics.", is_broken, job_id=job_id)
    for glance, num_planned, latest in jobs:
        families.tell_attempt(glance)
        families.tell_savings(glance)
        if glance.job_id in live:
            families.tell_balance(glance)
            families.tell_plans(glance.job_id, num_planned, pending[glance.job_id], latest)
            families.tell_execution(glance)
    registry = CollectorRegistry()
    registry.register(families)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _is_live(glance: JobGlance) -> bool:
    """Return whether a job trains: it has not ended, and it called a planner within the last hour."""
    return (
        not glance.attempt.has_finished and time.time() - (glance.attempt.heard_at or glance.attempt.began_at) < _LIVE_S
    )


class _Families:
    """The families of metrics, each with its values; the first value of a family brings its text and its labels."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()

    def gauge(self, name: str, text: str, value: float | None, **labels: str) -> None:
        """Tell a value of a gauge; None if it is not known."""
        self._add(GaugeMetricFamily, name, text, value, labels)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Tell a value of a counter."""
        self._add(CounterMetricFamily, name, text, value, labels)

    def _add(self, kind: Any, name: str, text: str, value: float | None, labels: Mapping[str, str]) -> None:
        family: Any = self._families.setdefault(name, kind(f"relibra_{name}", text, labels=list(labels)))
        if value is not None:
            family.add_metric(list(labels.values()), value)

    def tell_attempt(self, glance: JobGlance) -> None:
        attempt, gauge = glance.attempt, functools.partial(self.gauge, job_id=glance.job_id)
        gauge("job_attempt", "The number of the current attempt; it rises with every restart.", attempt.number)
        gauge("job_attempt_began_timestamp_seconds", "When the current attempt began.", attempt.began_at)
        heard = "When a trainer of the job last called a planner."
        gauge("job_heard_timestamp_seconds", heard, attempt.heard_at)
        text = "1 for the state of the job, 0 for the other states."
        for verdict in JobState:
            gauge("job_health", text, verdict is glance.health.verdict, verdict=verdict)

    def tell_tokens(self, tokens: Sequence[TokenRecord]) -> None:
        text = "When a token should have been renewed: a tenth of its time is left."
        for token in tokens:
            if token.expires_at is not None and token.expires_at > time.time():
                due_at = token.expires_at - (token.expires_at - token.created_at) / 10
                labels = {"token_id": token.token_id, "job_id": token.job_id, "role": token.role}
                self.gauge("token_renewal_due_timestamp_seconds", text, due_at, **labels)

    def tell_balance(self, glance: JobGlance) -> None:
        balance, gauge = glance.balance, functools.partial(self.gauge, job_id=glance.job_id)
        text = "1 for why the newest steps ran without a plan, 0 otherwise."
        for obstacle in Obstacle:
            gauge("not_balancing", text, obstacle is balance.obstacle, obstacle=obstacle)
        text = "1 if the newest packing of the attempt ended without a packed schedule, else 0."
        gauge("packing_gave_up", text, glance.packing is not None and glance.packing.state is PackingState.REFUSED)
        text = "The first of the newest steps in a row without a plan."
        gauge("not_balancing_since_step", text, balance.since_step)
        text = "How many of the newest executed steps ran without a plan."
        gauge("steps_without_plan", text, balance.num_without_plan)
        gauge("steps_executed_recently", f"The newest executed steps, at most {NUM_JUDGED}.", balance.num_executed)

    def tell_plans(self, job_id: str, num_planned: int, num_pending: int, plan: PlanRecord | None) -> None:
        gauge = functools.partial(self.gauge, job_id=job_id)
        self.counter("steps_planned", "Steps with a published plan.", num_planned, job_id=job_id)
        gauge("steps_pending", "Steps waiting for their plan.", num_pending)
        if plan is None:
            return
        gauge("plan_latency_seconds", "Time from schedule to plan, for the newest plan.", plan.latency_s)
        gauge("plan_published_timestamp_seconds", "When the newest plan was published.", plan.published_at)
        text = "1 for what the newest plan was made from, 0 otherwise."
        for level in Level:
            gauge("plan_level", text, level is plan.prediction.level, level=level)
        text = (
            "Slowest rank over mean rank as the newest plan expects it: before (no balancing), after, the bound of its "
            "placement, and the floor of any placement."
        )
        for when in ("before", "after", "bound", "floor"):
            gauge("plan_imbalance_ratio", text, getattr(plan.prediction, f"imbalance_{when}"), when=when)
        if (memory := plan.prediction.memory) is not None:
            for when, peak in (("before", memory.before), ("after", memory.after)):
                text = (
                    "Hottest rank over mean rank in the worst cell, as the newest plan expects it, without and with it."
                )
                gauge("plan_overload_factor", text, peak.overload, when=when)
                text = "Most token copies that a rank keeps at once over the mean, as the newest plan expects it."
                gauge("plan_cum_overload_factor", text, peak.cum_overload, when=when)
                text = "The most that activations of experts take on a rank, as the newest plan expects it."
                gauge("plan_activation_bytes", text, peak.size_bytes, when=when)
            text = "The most that activations of experts may take on a rank; absent without a budget."
            gauge("memory_budget_bytes", text, memory.budget_bytes or None)
        text = "Bytes that the newest plan transfers; absent where the job registered no sizes."
        for kind in ("reorder", "replica"):
            gauge("plan_transfer_bytes", text, getattr(plan.prediction, f"{kind}_size_bytes"), kind=kind)

    def tell_execution(self, glance: JobGlance) -> None:
        gauge = functools.partial(self.gauge, job_id=glance.job_id)
        text = "Newest executed steps whose plan forecast the memory of activations below level micro-batches."
        gauge("memory_forecasts_recently", text, glance.memory_forecasts.num_steps)
        text = "How many of them took more than their plan had forecast."
        gauge("memory_forecasts_exceeded", text, glance.memory_forecasts.num_exceeded)
        text = "Newest steps with a report that is not the one that was stored."
        gauge("damaged_steps", text, len(glance.damaged))
        if glance.applied is not None:
            text = (
                "What the plan that ranks applied in the executed step expects; below level micro-batches, a forecast."
            )
            expected = glance.applied.prediction
            gauge("expected_imbalance_ratio", text, expected.imbalance_after, level=expected.level)
        if glance.executed_step is not None:
            text = "The newest step that has reports; execution metrics are for it."
            gauge("executed_step", text, glance.executed_step.step)
        for execution in glance.executed:
            gauge = functools.partial(self.gauge, job_id=glance.job_id, phase=execution.phase)
            gauge("missing_reports", "Ranks that have not reported yet.", len(execution.missing))
            text = "Ranks that were to apply no plan, by cause."
            for cause in INTENDED:
                gauge("intended_ranks", text, execution.intended.get(cause, 0), cause=cause)
            text = "Ranks that kept the last plan though another was due, by cause."
            for cause in Cause:
                gauge("fallback_ranks", text, execution.fallbacks.get(cause, 0), cause=cause)
            for figure in PHASE_FIGURES:
                if figure.metric:
                    kind = {"kind": figure.label} if figure.label else {}
                    gauge(figure.metric, _MEASURED[figure.metric], getattr(execution, figure.field), **kind)

    def tell_savings(self, glance: JobGlance) -> None:
        saving, gauge = glance.savings, functools.partial(self.gauge, job_id=glance.job_id)
        text = (
            "GPU-hours that balancing saved in all kept steps; absent while unknown. /v1/jobs says what they rest on."
        )
        gauge("saved_gpu_hours", text, saving.saved_gpu_hours)
        text = "GPU-hours that ranks waited for the slowest rank of each cell."
        gauge("lost_gpu_hours", text, saving.lost_gpu_hours)
        text = "GPU-hours of the phases that saved_gpu_hours is about."
        gauge("training_gpu_hours", text, saving.trained_s / 3600)
        gauge("steps_without_savings", "Reported steps that saved_gpu_hours leaves out.", saving.num_left_out)


_MEASURED = {
    "plain_imbalance_ratio": "The same without relibra, from the loads of a few micro-batches.",
    "plain_overload_factor": "Hottest rank over mean rank without relibra, in the worst cell of a few micro-batches.",
    "realised_imbalance_ratio": "Slowest rank over mean rank, once all ranks have reported.",
    "realised_overload_factor": "Hottest rank over mean rank, in the worst cell (max_overload_factor).",
    "realised_cum_overload_factor": "Most copies that a rank kept at once, over the mean (max_cum_overload_factor).",
    "realised_activation_bytes": "The most that activations of experts took on a rank, by the copies that it computed.",
    "phase_seconds": "Longest phase of a rank, without its wait for the plan and the reorder.",
    "plan_wait_seconds": "Longest wait of a rank for the plan.",
    "sent_bytes": "Bytes sent by all ranks together.",
    "transfer_seconds": "Longest reorder of a rank, or its longest wait for replicas.",
}
