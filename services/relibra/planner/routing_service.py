"""Ingest: counts of finished sequences, acknowledged when they are durable."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from relibra.errors import InvalidInput, RelibraError, Unavailable, UnknownJob
from relibra.planner.limits import check_step
from relibra.planner.read_ahead import ReadAhead
from relibra.store import JobRecord, SequenceCounts, Store
from relibra.v1 import routing_pb2, routing_pb2_grpc
from relibra.wire.routing import decode_counts

logger = logging.getLogger(__name__)

_READ_AHEAD_SIZE_BYTES = 2 << 20


class RoutingService(routing_pb2_grpc.RoutingServiceServicer):
    """Keeps counts in the store. What is waiting on a stream goes to Redis in one round trip."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._streams: set[ReadAhead[routing_pb2.ReportRoutingRequest]] = set()
        self._is_draining = False

    def drain(self) -> None:
        """Answer what has been received, then end all streams; their senders turn to another planner."""
        self._is_draining = True
        for stream in self._streams:
            stream.end()

    async def ReportRouting(
        self, request_iterator: AsyncIterator[routing_pb2.ReportRoutingRequest], context: Any
    ) -> AsyncIterator[routing_pb2.ReportRoutingResponse]:
        """Answer every request of the stream: kept, or refused by name."""
        stream = ReadAhead(request_iterator, limit_size_bytes=_READ_AHEAD_SIZE_BYTES)
        reader = asyncio.create_task(stream.fill())
        self._streams.add(stream)
        if self._is_draining:
            stream.end()
        answered_through = 0
        try:
            while batch := await stream.take():
                for position, request in enumerate(batch, start=answered_through + 1):
                    if request.ordinal != position:
                        raise InvalidInput.of("ordinal", expected=str(position), got=request.ordinal)
                refused = await self._keep(batch)
                answered_through += len(batch)
                yield routing_pb2.ReportRoutingResponse(answered_through=answered_through, refused=refused)
            if self._is_draining:
                raise Unavailable("the planner is shutting down; report the rest to another one")
            await reader
        finally:
            self._streams.discard(stream)
            reader.cancel()

    async def _keep(self, batch: list[routing_pb2.ReportRoutingRequest]) -> list[routing_pb2.Refusal]:
        jobs = await self._store.get_jobs({request.job_id for request in batch})
        refused: list[routing_pb2.Refusal] = []
        accepted: list[routing_pb2.ReportRoutingRequest] = []
        sequences: list[SequenceCounts] = []
        for request in batch:
            try:
                sequences.append(_decode(request, jobs))
                accepted.append(request)
            except RelibraError as error:
                refused.append(_refusal(request, error))
        outcomes = await self._store.put_counts(sequences)
        refused += [_refusal(request, error) for request, error in zip(accepted, outcomes, strict=True) if error]
        return sorted(refused, key=lambda each: each.ordinal)


def _decode(request: routing_pb2.ReportRoutingRequest, jobs: dict[str, JobRecord]) -> SequenceCounts:
    job = jobs.get(request.job_id)
    if job is None:
        raise UnknownJob(f"job {request.job_id[:80]!r} is not registered; register it first")
    return SequenceCounts(
        job_id=job.job_id,
        step=check_step(request.step),
        sequence_id=request.sequence_id,
        counts_LE=decode_counts(request, job.model),
    )


def _refusal(request: routing_pb2.ReportRoutingRequest, error: RelibraError) -> routing_pb2.Refusal:
    logger.info("sequence %r of job %r refused: %s", request.sequence_id[:80], request.job_id[:80], error)
    return routing_pb2.Refusal(ordinal=request.ordinal, error=type(error).__name__, message=str(error))
