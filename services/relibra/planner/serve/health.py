"""gRPC health: SERVING while Redis serves and solvers are warm; NOT_SERVING otherwise and once the planner drains."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from relibra.errors import Unavailable, Unsupported
from relibra.planner.metrics import Metrics
from relibra.store import Store
from relibra.wire.status import VERSION_METADATA_KEY, WAITS_FOR_METADATA_KEY, WaitsFor

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.5
_ANSWER_TIMEOUT_S = 1.0
_POLICY_INTERVAL_S = 10.0
"""How often Redis is asked whether it evicts keys, while it is fit; new connections are checked too."""
_Status = health_pb2.HealthCheckResponse


class Health:
    """The health of every service, and of the server as a whole (the empty name)."""

    def __init__(
        self, store: Store, metrics: Metrics, services: Sequence[str], obstacle: Callable[[], str] = lambda: ""
    ) -> None:
        """Begin as not ready.

        Args:
            store: the store whose Redis is asked.
            metrics: where readiness is shown beside gRPC.
            services: the names of the gRPC services.
            obstacle: why the solver solves no step yet; empty once it does.
        """
        self._store = store
        self._metrics = metrics
        self._obstacle = obstacle
        self._services = ("", *services)
        self._servicer = _VersionedServicer()
        self._is_ready: bool | None = None
        self._fault = ""

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Answer the health checks that reach `server`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def follow_redis(self) -> None:
        """Keep the status up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_policy())
            while True:
                await self.look()
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _follow_policy(self) -> None:
        # Beside the looks: a server of a Cluster that does not answer must keep no planner from being ready.
        while True:
            await self.look_at_policy()
            await asyncio.sleep(_LOOK_INTERVAL_S if self._store.fault else _POLICY_INTERVAL_S)

    async def look_at_policy(self) -> None:
        """Ask once whether Redis may evict keys; the next look tells of it."""
        try:
            await self._store.check_policy()
        except (Unavailable, Unsupported):
            pass
        except Exception:
            logger.exception("asking Redis whether it evicts keys failed")

    async def look(self) -> None:
        """Ask Redis once, look at the solver, and set the status."""
        reason = await self._ask_redis()
        waits_for = WaitsFor.REDIS if reason else WaitsFor.SOLVER
        reason = reason or self._obstacle()
        self._servicer.waits_for = waits_for if reason else None
        is_ready = not reason
        self._metrics.tell_ready(reason)
        if self._store.fault != self._fault:
            self._fault = self._store.fault
            self._metrics.redis_unfit.set(bool(self._fault))
            if self._fault:
                logger.error("not ready, and nothing is acknowledged: %s", self._fault)
        if is_ready != self._is_ready:
            if is_ready:
                logger.info("ready")
            elif not self._fault:
                is_starting = self._is_ready is None and waits_for is WaitsFor.SOLVER
                logger.log(logging.INFO if is_starting else logging.WARNING, "not ready: %s", reason)
            self._is_ready = is_ready
            for service in self._services:
                await self._servicer.set(service, _Status.SERVING if is_ready else _Status.NOT_SERVING)

    async def _ask_redis(self) -> str:
        """Return why Redis cannot be used now, or an empty text."""
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                if await self._store.check_again():
                    self._tell_of_loss()
        except TimeoutError:
            return f"Redis did not answer within {_ANSWER_TIMEOUT_S} s"
        except (Unavailable, Unsupported) as error:
            return str(error)
        except Exception as error:
            # For example a Redis user that lost its rights. If this loop died, the last "ready" would stand forever.
            return f"Redis cannot be used: {type(error).__name__}: {error}"
        return ""

    def _tell_of_loss(self) -> None:
        self._metrics.redis_emptied.inc()
        logger.error(
            "Redis lost everything: it was emptied, or started without its file. Jobs, steps and tokens are gone. Each "
            "driver must register its job again; find out what emptied Redis"
        )

    async def drain(self) -> None:
        """Answer NOT_SERVING from now on."""
        await self._servicer.enter_graceful_shutdown()


class _VersionedServicer(health_aio.HealthServicer):  # type: ignore[misc]  # the package has no types
    """Sends the version of relibra, and what the planner waits for, with every answer; for `relibra doctor`."""

    waits_for: WaitsFor | None = None

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> health_pb2.HealthCheckResponse:
        waits_for = () if self.waits_for is None else ((WAITS_FOR_METADATA_KEY, self.waits_for),)
        await context.send_initial_metadata(((VERSION_METADATA_KEY, version("relibra")), *waits_for))
        return await super().Check(request, context)
