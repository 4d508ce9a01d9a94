"""The planner process: services on an address, the planning loop beside them."""

import asyncio
import logging

import grpc
import grpc.aio

from relibra.errors import Unavailable
from relibra.planner.bell import Bell
from relibra.planner.error_interceptor import ErrorInterceptor
from relibra.planner.execution_service import ExecutionService
from relibra.planner.job_service import JobService
from relibra.planner.plan_service import PlanService
from relibra.planner.planning_loop import PlanningLoop
from relibra.planner.routing_service import RoutingService
from relibra.planner.solver import Solver
from relibra.store import Store
from relibra.v1 import execution_pb2_grpc, job_pb2_grpc, plan_pb2_grpc, routing_pb2_grpc
from relibra.wire.channel import MAX_MESSAGE_SIZE_BYTES

logger = logging.getLogger(__name__)

DRAIN_TIMEOUT_S = 10.0

_OPTIONS = (
    # Two planners on one port would share its connections at random; the second must fail instead.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_SIZE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_SIZE_BYTES),
    # Clients ping every 30 s on idle streams; by default that counts as abuse below 300 s.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


class PlannerServer:
    """One planner on one store."""

    def __init__(self, redis_url: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._redis_url = redis_url
        self._host = host
        self._port = port

    async def start(self) -> str:
        """Start serving and planning; return the address that is bound.

        Raises:
            Unavailable: Redis does not answer, or the port is in use.
        """
        self._store = Store.open(self._redis_url)
        try:
            await self._store.ping()
            self._server, address = self._bind()
        except Unavailable:
            await self._store.close()
            raise
        self._bell = Bell()
        self._solver = Solver(self._redis_url)
        self._loop = PlanningLoop(self._store, self._solver, self._bell)
        self._routing = RoutingService(self._store)
        job_pb2_grpc.add_JobServiceServicer_to_server(JobService(self._store), self._server)
        routing_pb2_grpc.add_RoutingServiceServicer_to_server(self._routing, self._server)
        plan_pb2_grpc.add_PlanServiceServicer_to_server(
            PlanService(self._store, self._bell, self._loop.wake), self._server
        )
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(ExecutionService(self._store), self._server)
        await self._server.start()
        self._planning = asyncio.create_task(self._loop.run())
        logger.info("planner serves on %s", address)
        return address

    def _bind(self) -> tuple[grpc.aio.Server, str]:
        server = grpc.aio.server(interceptors=[ErrorInterceptor()], options=_OPTIONS)
        address = f"{self._host}:{self._port}"
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(f"cannot listen on {address}: is another planner running there?") from error
        return server, f"{self._host}:{port}"

    async def stop(self) -> None:
        """Drain: answer what was received, finish the step that is being solved, leave the rest to the store (L4)."""
        logger.info("planner drains")
        self._routing.drain()
        self._bell.drain()
        self._loop.stop()
        await self._server.stop(DRAIN_TIMEOUT_S)
        await self._planning
        await self._solver.close()
        await self._store.close()
        logger.info("planner stopped")
