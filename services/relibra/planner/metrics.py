"""The figures of one planner for Prometheus, and its probes; the status service has the figures of jobs."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal, get_args
from wsgiref.simple_server import make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from relibra import service_log
from relibra.errors import Unavailable
from relibra.planner.metrics_server import MetricsServer, QuietHandler

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

logger = logging.getLogger(__name__)

HUNG_AFTER_S = 10.0
"""How long the event loop may stand still before the planner counts as hung; no load holds it up for so long."""
_CALL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 60)
_SOLVE_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
_LAG_INTERVAL_S = 0.1
LIMITS = (
    "calls",
    "max_calls_per_job",
    "message_timeout",
    "request_size",
    "health_watches",
    "max_cells",
    "max_jobs",
    "max_jobs_by_prefix",
    "max_open_steps",
    "max_processes",
    "max_reports_size_bytes",
    "num_ranks",
    "credit",
    "packings",
    "pack_timeout_s",
    "packed_counts",
    "packed_loads",
    "max_sequences",
    "max_step_size_bytes",
    "max_streams_per_job",
    "solver_memory_bytes",
    "other",
)
"""Counted from zero, so that the first refusal is an increase."""
Lost = Literal["everything", "its newest writes"]
OUT_OF_MEMORY = "out_of_memory"
_OUTCOMES = ("published", "failed", "crashed", OUT_OF_MEMORY, "LostLease", "Unavailable", "Corrupt")


class Metrics:
    """Counters and histograms. Labels take few values: methods, error classes, outcomes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"relibra_planner_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"relibra_planner_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, buckets_s: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"relibra_planner_{name}_seconds", text, labels, buckets=buckets_s, registry=registry)

        self.call_s = seconds("call", "Calls that were answered.", _CALL_BUCKETS_S, "method")
        self.refused = counter("refused", "Calls that ended in an error.", "method", "error")
        self.limited = counter("limited", "Calls and sequences that a limit refused.", "limit")
        self.open_calls = gauge("open_calls", "Open calls and streams.")
        self.sequences = counter("sequences", "Sequences reported, by what became of them.", "outcome")
        self.refused_sequences = counter("sequences_refused", "Refused sequences, by error.", "error")
        self.ingested_bytes = counter("ingested_bytes", "Size of sequences reported.")
        self.streams = gauge("ingest_streams", "Open streams of rollout workers.")
        self.solves = counter("solves", "Solves, by how they ended.", "outcome")
        self.solve_s = seconds("solve", "From lease to plan in hand.", _SOLVE_BUCKETS_S)
        waits = "How long jobs with a step to solve waited for a free solver."
        self.queue_wait_s = seconds("queue_wait", waits, _SOLVE_BUCKETS_S)
        self.publish_s = seconds("publish", "Publishing.", _CALL_BUCKETS_S)
        self.expired_steps = counter("expired_steps", "Steps whose full data expired, by cause.", "cause")
        self.lag_s = seconds("event_loop_lag", "How late the event loop was.", _CALL_BUCKETS_S)
        ready = "1 while Redis answers, has its lists and may keep the state of jobs, and the solvers are warm."
        gauge("ready", ready).set_function(lambda: not (self._fault() or self._not_ready))
        self.missing_solvers = gauge("missing_solvers", "Solvers that did not start, or that ended and start again.")
        gauge("version", "1 for the version of relibra.", "version").labels(version("relibra")).set(1)
        due = "When the certificate should have been renewed: a fifth of its time is left. 0 without TLS."
        self.certificate_due = gauge("certificate_renewal_due_timestamp_seconds", due)
        errors = "Errors with a traceback in the log since the planner started."
        gauge("unexpected_errors", errors).set_function(lambda: service_log.unexpected.number)
        share = "How much of its memory the fullest server of Redis uses, 1 for all."
        self.redis_memory_share = gauge("redis_memory_ratio", share)
        self.redis_rewrite_fails = gauge("redis_rewrite_fails", "1 while Redis cannot rewrite its append-only file.")
        self.clock_offset_s = gauge("clock_offset_seconds", "How much the clock is ahead of that of Redis.")
        unfit = "1 while Redis may not keep the state of jobs, so that nothing is acknowledged."
        self.redis_unfit = gauge("redis_unfit", unfit)
        forgets = "1 while a kill of Redis may lose what it acknowledged, which was so when the planner started."
        self.redis_forgets = gauge("redis_forgets", forgets)
        files = "Open files, almost all of them connections, as a part of the connections that this planner takes."
        self.files_ratio = gauge("files_ratio", files)
        self.redis_losses = counter("redis_losses", "How often Redis had lost data, by what.", "lost")
        for lost in get_args(Lost):
            self.redis_losses.labels(lost)
        for method in ("FetchPlan", "SubmitSchedule"):
            self.refused.labels(method, "Corrupt")
        for limit in LIMITS:
            self.limited.labels(limit)
        for outcome in _OUTCOMES:
            self.solves.labels(outcome)
        self._show = make_wsgi_app(registry)
        self._clock = clock
        self._ran_at = clock()
        self._not_ready = "Redis was not asked yet"
        self._ended = ""

    def serve(self, host: str, port: int) -> int:
        """Serve `/metrics`, `/readyz` and `/livez` from a thread; return the port.

        Readiness is served here as well as on the gRPC port, because kubelets do not speak gRPC over TLS.

        Raises:
            Unavailable: the port is in use.
        """
        try:
            server = make_server(host, port, self._answer, MetricsServer, handler_class=QuietHandler)
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port} for metrics: {error.strerror}") from error
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server.server_port

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        answer = self.probe(environ["PATH_INFO"])
        if answer is None:
            shown: Iterable[bytes] = self._show(environ, start_response)
            return shown
        is_well, line = answer
        start_response("200 OK" if is_well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [f"{line}\n".encode()]

    def probe(self, path: str) -> tuple[bool, str] | None:
        """Answer an orchestrator: `/livez`, whether to let the planner be, and `/readyz`, whether to send it calls.

        The event loop writes what threads of the metrics server answer. A planner that was stopped, or that is stuck in
        compiled code, answers nothing at all, which orchestrators count as not alive.

        Returns:
            Whether the planner is well, and a line that says so or why not; None if `path` is no probe.
        """
        if path not in ("/livez", "/readyz"):
            return None
        fault = self._fault()
        if fault or path == "/livez":
            return not fault, fault or "alive"
        return not self._not_ready, f"not ready: {self._not_ready}" if self._not_ready else "ready"

    def _fault(self) -> str:
        """Return why the planner must be started again; empty while it is alive."""
        still_s = self._clock() - self._ran_at
        return f"the event loop has not run for {still_s:.0f} s" if still_s > HUNG_AFTER_S else self._ended

    def tell_ready(self, reason: str) -> None:
        """Let `/metrics` and `/readyz` say that the planner is ready, or why it is not."""
        self._not_ready = reason

    def follow(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start what runs as long as the planner does; if it fails, `/livez` says so."""
        task = asyncio.create_task(work, name=getattr(work, "__qualname__", ""))
        task.add_done_callback(self._tell_end)
        return task

    def _tell_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._ended = f"{task.get_name()} ended: {type(error).__name__}: {error}"
            logger.critical("start this planner again: %s", self._ended, exc_info=error)

    def beat(self) -> None:
        """Let `/livez` know that the event loop runs."""
        self._ran_at = self._clock()

    async def watch_event_loop(self) -> None:
        """Measure how late a timer fires, and note that it fires, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.beat()
            due = loop.time() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            self.lag_s.observe(max(0.0, loop.time() - due))
