"""The figures of one planner for Prometheus; the status service has those of jobs."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from relibra.errors import Unavailable
from relibra.planner.probes import Probes

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

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
    "max_open_steps",
    "max_processes",
    "max_reports_size_bytes",
    "num_ranks",
    "credit",
    "packings",
    "packed_counts",
    "packed_loads",
    "max_sequences",
    "max_step_size_bytes",
    "max_streams_per_job",
    "solver_memory_bytes",
    "other",
)
"""Counted from zero, so that the first refusal is an increase."""
OUT_OF_MEMORY = "out_of_memory"
_OUTCOMES = ("published", "failed", "crashed", OUT_OF_MEMORY)


class Metrics:
    """Counters and histograms. Labels take few values: methods, error classes, outcomes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._show = make_wsgi_app(self._registry)
        registry = self._registry
        self.call_s = Histogram(
            "relibra_planner_call_seconds",
            "Calls that were answered.",
            ["method"],
            buckets=_CALL_BUCKETS_S,
            registry=registry,
        )
        self.refused = Counter(
            "relibra_planner_refused_total", "Calls that ended in an error.", ["method", "error"], registry=registry
        )
        self.limited = Counter(
            "relibra_planner_limited_total", "Calls and sequences that a limit refused.", ["limit"], registry=registry
        )
        for limit in LIMITS:
            self.limited.labels(limit)
        self.open_calls = Gauge("relibra_planner_open_calls", "Open calls and streams.", registry=registry)
        self.sequences = Counter(
            "relibra_planner_sequences_total",
            "Sequences reported, by what became of them.",
            ["outcome"],
            registry=registry,
        )
        self.refused_sequences = Counter(
            "relibra_planner_sequences_refused_total", "Refused sequences, by error.", ["error"], registry=registry
        )
        self.ingested_bytes = Counter(
            "relibra_planner_ingested_bytes_total", "Size of sequences reported.", registry=registry
        )
        self.streams = Gauge("relibra_planner_ingest_streams", "Open streams of rollout workers.", registry=registry)
        self.solves = Counter(
            "relibra_planner_solves_total", "Solves, by how they ended.", ["outcome"], registry=registry
        )
        for outcome in _OUTCOMES:
            self.solves.labels(outcome)
        self.solve_s = Histogram(
            "relibra_planner_solve_seconds", "From lease to plan in hand.", buckets=_SOLVE_BUCKETS_S, registry=registry
        )
        self.queue_wait_s = Histogram(
            "relibra_planner_queue_wait_seconds",
            "How long jobs with a step to solve waited for a free solver.",
            buckets=_SOLVE_BUCKETS_S,
            registry=registry,
        )
        self.expired_steps = Counter(
            "relibra_planner_expired_steps_total",
            "Steps whose full data expired, by cause.",
            ["cause"],
            registry=registry,
        )
        self.publish_s = Histogram(
            "relibra_planner_publish_seconds", "Publishing.", buckets=_CALL_BUCKETS_S, registry=registry
        )
        self.lag_s = Histogram(
            "relibra_planner_event_loop_lag_seconds",
            "How late the event loop was.",
            buckets=_CALL_BUCKETS_S,
            registry=registry,
        )
        self.ready = Gauge(
            "relibra_planner_ready",
            "1 while Redis answers and may keep the state of jobs, and the solver is warm.",
            registry=registry,
        )
        self.redis_unfit = Gauge(
            "relibra_planner_redis_unfit",
            "1 while Redis may evict keys or holds another schema, so that nothing is acknowledged.",
            registry=registry,
        )
        self.redis_emptied = Counter(
            "relibra_planner_redis_emptied_total", "How often Redis had lost everything.", registry=registry
        )
        self._probes = Probes()

    def serve(self, host: str, port: int) -> int:
        """Serve `/metrics`, `/readyz` and `/livez` from a thread; return the port.

        Readiness is served here as well as on the gRPC port, because kubelets do not speak gRPC over TLS.

        Raises:
            Unavailable: the port is in use.
        """
        try:
            server = make_server(host, port, self._answer, ThreadingWSGIServer, handler_class=_Silent)
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port} for metrics: {error.strerror}") from error
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server.server_port

    def _answer(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        answer = self._probes.answer(environ["PATH_INFO"])
        if answer is None:
            shown: Iterable[bytes] = self._show(environ, start_response)
            return shown
        is_well, line = answer
        start_response("200 OK" if is_well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [f"{line}\n".encode()]

    def tell_ready(self, reason: str) -> None:
        """Let `/metrics` and `/readyz` say that the planner is ready, or why it is not."""
        self._probes.tell_ready(reason)
        self.ready.set(not reason)

    async def watch_event_loop(self) -> None:
        """Measure how late a timer fires, and let `/livez` know that it fires, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._probes.beat()
            due = loop.time() + _LAG_INTERVAL_S
            await asyncio.sleep(_LAG_INTERVAL_S)
            self.lag_s.observe(max(0.0, loop.time() - due))


class _Silent(WSGIRequestHandler):
    timeout = 10.0
    """How long a client may stay silent, in seconds: each connection has a thread of its own."""

    def handle(self) -> None:
        """Answer one request, or hang up on a client that sends none."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing: probes and scrapes come every few seconds."""
