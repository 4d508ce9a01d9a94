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
from relibra.planner.metrics import Lost, Metrics
from relibra.store import Store
from relibra.wire.status import VERSION_METADATA_KEY, WAITS_FOR_METADATA_KEY, WaitsFor

logger = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.5
_ANSWER_TIMEOUT_S = 1.0
_SETTINGS_INTERVAL_S = 5.0
"""How often Redis is asked for its settings and for what it lost, while it is fit; new connections are checked too."""
_Status = health_pb2.HealthCheckResponse
_LOSSES: dict[Lost, str] = {
    "everything": "it was emptied, or started without its file. Jobs, steps and tokens are gone. Each driver must "
    "register its job again; find out what emptied Redis",
    "its newest writes": "an older backup was restored, or a replica took over that was behind. Plans, reports and "
    "tokens of the time since are gone, and the number of a lost attempt or plan may be given out again. Restart the "
    "jobs that ran meanwhile",
}


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
        self._fault = self._weakness = ""
        self._untold: Lost | None = None
        """What Redis lost and pages do not know yet."""

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Answer the health checks that reach `server`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def follow_redis(self) -> None:
        """Keep the status up to date, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_settings())
            while True:
                await self.look()
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _follow_settings(self) -> None:
        # Beside the looks: a server of a Cluster that does not answer must keep no planner from being ready.
        while True:
            await self.look_at_settings()
            await asyncio.sleep(_LOOK_INTERVAL_S if self._store.fault else _SETTINGS_INTERVAL_S)

    async def look_at_settings(self) -> None:
        """Ask once whether Redis keeps what it acknowledges, and whether it did; the next look tells of a fault."""
        try:
            state = await self._store.server_state()
            self._metrics.redis_memory_share.set(state.memory_share)
            self._metrics.redis_rewrite_fails.set(state.fails_to_rewrite)
            self._metrics.clock_offset_s.set(state.clock_offset_s)
            self._tell_of_weakness(await self._store.check_settings())
            await self._note_loss()
            if await self._store.has_gone_back():
                await self._tell_of_loss("its newest writes")
        except (Unavailable, Unsupported):
            pass
        except Exception:
            logger.exception("asking Redis for its settings failed")

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
                    await self._tell_of_loss("everything")
        except TimeoutError:
            return f"Redis did not answer within {_ANSWER_TIMEOUT_S} s"
        except (Unavailable, Unsupported) as error:
            return str(error)
        except Exception as error:
            # For example a Redis user that lost its rights. If this loop died, the last "ready" would stand forever.
            return f"Redis cannot be used: {type(error).__name__}: {error}"
        return ""

    async def _tell_of_loss(self, lost: Lost) -> None:
        self._metrics.redis_losses.labels(lost).inc()
        logger.error("Redis lost %s: %s", lost, _LOSSES[lost])
        self._untold = lost
        await self._note_loss()

    async def _note_loss(self) -> None:
        """Write a note of what Redis lost as soon as Redis takes it; pages show the note."""
        if (lost := self._untold) is not None:
            await self._store.note_loss(lost)
            if self._untold == lost:  # or the other task saw another loss meanwhile
                self._untold = None

    def _tell_of_weakness(self, weakness: str) -> None:
        self._metrics.redis_forgets.set(bool(weakness))
        if weakness and weakness != self._weakness:
            logger.warning("%s. It was so when this planner started, so the planner goes on", weakness)
        self._weakness = weakness

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
