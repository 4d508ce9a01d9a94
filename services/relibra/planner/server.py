"""The planner process: gRPC services on an address, and the planning loop beside them."""

import asyncio
import gc
import logging
import os
import sys

import grpc
import grpc.aio

from relibra.errors import RelibraError, Unavailable
from relibra.planner.limits.admission import MAX_CALLS, Admission, max_part_size_bytes
from relibra.planner.limits.large_messages import SWITCH_INTERVAL_S
from relibra.planner.limits.machine import container_bytes, container_cores, tell_of_room, with_memory, with_threads
from relibra.planner.limits.process import num_open_files, return_memory, with_files
from relibra.planner.loop.planning_loop import PlanningLoop
from relibra.planner.loop.step_expiry import StepExpiry
from relibra.planner.metrics import Metrics
from relibra.planner.plan_notifier import PlanNotifier
from relibra.planner.serve.access import Access
from relibra.planner.serve.attempt_watch import AttemptWatch
from relibra.planner.serve.call_interceptor import CallInterceptor
from relibra.planner.serve.certificates import CertificateFiles
from relibra.planner.serve.execution_service import ExecutionService
from relibra.planner.serve.health import Health
from relibra.planner.serve.job_service import JobService
from relibra.planner.serve.plan_cache import PlanCache
from relibra.planner.serve.plan_service import PlanService
from relibra.planner.serve.routing_service import RoutingService
from relibra.planner.settings import PlannerSettings
from relibra.planner.solve import machine_code
from relibra.planner.solve.solver import SolverPool
from relibra.store import Store
from relibra.v1 import execution_pb2_grpc, job_pb2_grpc, plan_pb2_grpc, routing_pb2_grpc
from relibra.wire.channel import MAX_MESSAGE_SIZE_BYTES

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 10.0
MAX_CALLS_PER_CONNECTION = 1024
"""Further calls of a connection wait at the caller; a proxy opens more connections."""
MAX_CONNECTIONS = 2 * MAX_CALLS
"""Ranks without an open call have a connection too. gRPC closes further connections at once."""
SERVICES = tuple(f"relibra.v1.{name}Service" for name in ("Job", "Routing", "Plan", "Execution"))

_GC_THRESHOLD = 10_000
"""By default, garbage collection took 40 % of the time for 8192 calls that come at once, with pauses of 0.2 s."""

_OPTIONS = (
    # Two planners on one port would share its connections at random; the second one must fail instead.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_SIZE_BYTES),
    ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
    # Until a call asks for its message, gRPC takes in this much of it, and never more on a fast connection.
    ("grpc.http2.lookahead_bytes", 65_536),
    ("grpc.http2.bdp_probe", 0),
    # Calls that came and were not looked at yet. By default gRPC cancels new calls at random from 1000 of them on, also
    # those of callers who sent one.
    ("grpc.server.max_pending_requests", MAX_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_CALLS),
    # Clients ping every 30 s on idle streams; by default gRPC treats pings more often than every 300 s as abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # A caller may never finish its handshake. By default gRPC waits 120 s for it.
    ("grpc.server_handshake_timeout_ms", 20_000),
    # Frees the memory of connections whose peer vanished without closing them.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class PlannerServer:
    """One planner on one store."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings

    async def start(self) -> str:
        """Start serving and planning; return the bound address.

        Raises:
            Unavailable: Redis does not answer, or a port is in use.
            Unsupported: Redis holds a schema that this relibra cannot read, or may evict keys.
            InvalidInput: a TLS file cannot be used.
        """
        settings = with_memory(self._settings, container_bytes())
        settings = self._settings = with_threads(settings, container_cores(), len(os.sched_getaffinity(0)))
        self._store = Store.open(settings.redis_url)
        self._metrics = Metrics()
        self._notifier = PlanNotifier()
        self._admission = Admission(settings)
        try:
            await self._store.check()
            tell_of_room(settings, (await self._store.server_state()).max_memory_bytes)
            if settings.metrics_port is not None:
                port = self._metrics.serve(settings.host, settings.metrics_port)
                logger.info("metrics on http://%s:%d/metrics", settings.host, port)
            self._server, address = self._bind()
        except RelibraError:
            await self._store.close()
            raise
        machine_code.provide()
        self._solver = SolverPool(settings)
        self._metrics.missing_solvers.set_function(lambda: self._solver.num_missing)
        self._loop = PlanningLoop(self._store, self._solver, self._notifier, self._metrics, settings)
        self._health = Health(self._store, self._metrics, SERVICES, lambda: self._solver.lack)
        self._add_services()
        await self._health.look()
        await self._server.start()
        self._planning = self._metrics.follow(self._loop.run())
        self._watching = [
            self._metrics.follow(work)
            for work in (
                self._health.follow_redis(),
                self._metrics.watch_event_loop(),
                return_memory(),
                self._solver.run(),
                StepExpiry(self._store, self._metrics, settings).run(),
            )
        ]
        # Imported modules stay for good; garbage collection need not walk them while agents wait.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        logger.info("planner serves on %s with %s", address, settings.changes)
        if settings.auth == "none":
            settings.log_openness(logger, f"anyone who can connect to {address} can read and change every job")
        elif settings.tls_cert_file is None:
            logger.warning("no TLS: tokens travel to %s unencrypted", address)
        return address

    def _add_services(self) -> None:
        store, admission, server = self._store, self._admission, self._server
        self._routing = RoutingService(store, admission, self._metrics)
        attempts = AttemptWatch(store)
        cache = PlanCache(store)
        plans = PlanService(store, admission, attempts, self._notifier, cache, self._loop)
        job_pb2_grpc.add_JobServiceServicer_to_server(JobService(store, admission, attempts, cache), server)
        routing_pb2_grpc.add_RoutingServiceServicer_to_server(self._routing, server)
        plan_pb2_grpc.add_PlanServiceServicer_to_server(plans, server)
        executions = ExecutionService(store, admission, attempts, self._loop)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(executions, server)
        self._health.serve_on(server)

    def _bind(self) -> tuple[grpc.aio.Server, str]:
        settings = self._settings
        num_connections = with_files(MAX_CONNECTIONS)
        self._metrics.files_ratio.set_function(lambda: num_open_files() / num_connections)
        access = Access(self._store, is_required=settings.auth == "required", trust_domain=settings.trust_domain)
        server = grpc.aio.server(
            interceptors=[CallInterceptor(access, self._admission, self._metrics)],
            options=(
                *_OPTIONS,
                ("grpc.max_receive_message_length", max_part_size_bytes(settings.max_cells)),
                ("grpc.max_allowed_incoming_connections", num_connections),
            ),
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.port}"
        credentials = self._tls()
        try:
            port = (
                server.add_insecure_port(address)
                if credentials is None
                else server.add_secure_port(address, credentials)
            )
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address}: is another planner running there? Stop it, or choose another port"
            ) from error
        return server, f"{host}:{port}"

    def _tls(self) -> grpc.ServerCredentials | None:
        settings = self._settings
        if settings.tls_cert_file is None or settings.tls_key_file is None:
            return None
        files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
        self._metrics.certificate_due.set_function(files.renewal_due)
        return files.to_grpc()

    async def stop(self) -> None:
        """Drain: answer the requests that arrived, finish the running solves, leave other steps in the store (L4)."""
        logger.info("planner drains")
        await self._health.drain()
        self._routing.drain()
        self._notifier.drain()
        self._admission.drain()
        self._loop.stop()
        await self._server.stop(DRAIN_TIMEOUT_S)
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await asyncio.gather(self._planning, return_exceptions=True)
        except TimeoutError:
            logger.warning("a solve did not end within %.0f s; it is left to another planner", DRAIN_TIMEOUT_S)
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)  # one that failed has said so
        self._admission.large.close()
        await self._solver.close()
        await self._store.close()
        logger.info("planner stopped")
