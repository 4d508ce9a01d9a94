"""The gRPC service that takes the counts of finished sequences and acknowledges them once they are durable."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from relibra.errors import (
    InvalidInput,
    LimitExceeded,
    RelibraError,
    StaleEpoch,
    Unavailable,
    UnknownJob,
    one_line,
)
from relibra.planner.limits.admission import MAX_REFUSAL_LENGTH, Admission
from relibra.planner.metrics import Metrics
from relibra.planner.plan_notifier import ShuttingDown, wait_until_set
from relibra.planner.serve.attempt_watch import check_epoch
from relibra.planner.serve.read_ahead import ReadAhead
from relibra.refusal_log import RefusalLog
from relibra.store import Attempt, JobRecord, Refused, SequenceCounts, Store
from relibra.store.single_flight import SingleFlight
from relibra.v1 import routing_pb2, routing_pb2_grpc
from relibra.wire.routing import attempt_of_stream, decode_counts, decode_policies, step_of

logger = logging.getLogger(__name__)

_READ_AHEAD_SIZE_BYTES = 2 << 20
_LOOK_INTERVAL_S = 1.0
"""How long a new attempt may go unnoticed by an idle stream."""
_MAX_JOBS = 1024
CREDIT_SEQUENCES = 512
"""How far a sender may be ahead of the answers: enough to keep Redis busy for a round trip, few to send again."""


class RoutingService(routing_pb2_grpc.RoutingServiceServicer):
    """Keeps counts in the store. All requests that wait on a stream go to Redis in one round trip."""

    def __init__(self, store: Store, admission: Admission, metrics: Metrics) -> None:
        self._store = store
        self._admission = admission
        self._metrics = metrics
        self._refusals = RefusalLog(logger)
        self._streams: set[ReadAhead] = set()
        self._draining = asyncio.Event()
        self._attempts: SingleFlight[list[Attempt]] = SingleFlight(_MAX_JOBS, fresh_s=_LOOK_INTERVAL_S)

    def drain(self) -> None:
        """Answer the requests that have arrived, then end all streams; their senders turn to another planner."""
        self._draining.set()
        for stream in self._streams:
            stream.end()

    async def ReportRouting(
        self, request_iterator: AsyncIterator[routing_pb2.ReportRoutingRequest], context: Any
    ) -> AsyncIterator[routing_pb2.ReportRoutingResponse]:
        """Answer every request of the stream: it is kept, or refused by name. Grant credit for more."""
        stream = ReadAhead(request_iterator, limit_size_bytes=_READ_AHEAD_SIZE_BYTES)
        reader = asyncio.create_task(stream.fill())
        self._streams.add(stream)
        if self._draining.is_set():
            stream.end()
        answered_through, named = 0, 0
        # The values of the newest request; before the first request, those for which the stream was opened.
        job_id, epoch = attempt_of_stream(context.invocation_metadata())
        try:
            with self._metrics.streams.track_inprogress():
                yield routing_pb2.ReportRoutingResponse(credit_through=CREDIT_SEQUENCES)
                while True:
                    try:
                        async with asyncio.timeout(_LOOK_INTERVAL_S):
                            batch = await stream.take()
                    except TimeoutError:
                        if (later := await self._epoch_after(job_id, epoch)) > named:
                            # A worker learns that its launch goes on in another attempt before it reports for it.
                            named = later
                            yield routing_pb2.ReportRoutingResponse(
                                answered_through=answered_through,
                                credit_through=answered_through + CREDIT_SEQUENCES,
                                epoch=named,
                            )
                        continue
                    if not batch:
                        break
                    last = _check_ordinals(batch, answered_through)
                    if pause_s := self._pause_s(batch):
                        # Before the batch is kept, so that a sender that opens a stream for every batch waits too.
                        # Further requests stay in the stream, whose flow control stops the sender.
                        await wait_until_set(self._draining, pause_s)
                    jobs = await self._store.get_jobs({request.job_id for request in batch})
                    refused = await self._keep(batch, jobs)
                    answered_through = last
                    job_id, epoch = batch[-1].job_id, batch[-1].sequences[-1].epoch
                    named = await self._epoch_after(job_id, epoch)
                    yield routing_pb2.ReportRoutingResponse(
                        answered_through=answered_through,
                        refused=refused,
                        credit_through=answered_through + CREDIT_SEQUENCES,
                        epoch=named,
                    )
            if self._draining.is_set():
                raise ShuttingDown("the planner is shutting down; report the rest to another planner")
            await reader
        finally:
            self._streams.discard(stream)
            reader.cancel()

    async def _epoch_after(self, job_id: str, epoch: int) -> int:
        """Return the newest attempt of the launch that began `epoch`, at most a second old; 0 if that is not known."""
        if not job_id:
            return 0
        try:
            attempts = await self._attempts.get(job_id, lambda: self._store.list_attempts(job_id))
        except Unavailable:
            return 0  # which tells the worker nothing; it asks again with its next report
        for attempt in attempts:
            if attempt.epoch == epoch:
                return attempts[0].epoch if attempt.token_hash == attempts[0].token_hash else 0
        return 0

    def _pause_s(self, batch: list[routing_pb2.ReportRoutingRequest]) -> float:
        """Account for a batch, kept or refused; return how long it must wait."""
        sizes: Counter[str] = Counter()
        for request in batch:
            sizes[request.job_id] += request.ByteSize()
        self._metrics.ingested_bytes.inc(sizes.total())
        now = time.monotonic()
        delay_s = self._admission.ingest_bytes.delay_s
        return max(delay_s(job_id, size_bytes, now) for job_id, size_bytes in sizes.items())

    async def _keep(
        self, batch: list[routing_pb2.ReportRoutingRequest], jobs: dict[str, JobRecord]
    ) -> list[routing_pb2.Refusal]:
        """Keep the valid sequences of a batch; return the refusals of the others."""
        messages = [
            (request.job_id, ordinal, sequence)
            for request in batch
            for ordinal, sequence in enumerate(request.sequences, start=request.ordinal)
        ]
        sequences: dict[int, SequenceCounts] = {}
        errors: dict[int, RelibraError] = {}
        # A worker with a full buffer sends thousands of sequences of an attempt that is over, all with the same names.
        attempt_errors: dict[tuple[str, int], RelibraError | None] = {}
        for job_id, ordinal, sequence in messages:
            job, attempt = jobs.get(job_id), (job_id, sequence.epoch)
            if attempt not in attempt_errors:
                attempt_errors[attempt] = await self._attempt_error(*attempt, job)
            if (stale := attempt_errors[attempt]) is not None:
                errors[ordinal] = stale
                continue
            try:
                sequences[ordinal] = self._decode(job_id, sequence, job)
            except RelibraError as error:
                errors[ordinal] = error
        outcomes = await self._store.put_counts(list(sequences.values()), self._admission.store_limits)
        errors |= {ordinal: error for ordinal, error in zip(sequences, outcomes, strict=True) if error is not None}
        refused: list[routing_pb2.Refusal] = []
        newest: dict[tuple[str, int | None], RelibraError] = {}
        for job_id, ordinal, sequence in messages:
            if (why := errors.get(ordinal)) is not None:
                refused.append(self._refusal(job_id, ordinal, sequence, why))
                newest[job_id, step_of(sequence)] = why
        for (job_id, step), why in newest.items():
            if job_id in jobs and not isinstance(why, StaleEpoch):
                await self._store.note_refusal(jobs[job_id], Refused.SEQUENCES, step or 0, why)
        self._metrics.sequences.labels("refused").inc(len(refused))
        for name, number in Counter(refusal.error for refusal in refused).items():
            self._metrics.refused_sequences.labels(name).inc(number)
        self._metrics.sequences.labels("kept").inc(len(messages) - len(refused))
        return refused

    def _refusal(
        self, job_id: str, ordinal: int, sequence: routing_pb2.SequenceRouting, error: RelibraError
    ) -> routing_pb2.Refusal:
        name = type(error).__name__
        if isinstance(error, LimitExceeded):
            self._metrics.limited.labels(error.limit or "other").inc()
        text = f"sequence {sequence.sequence_id[:80]!r} of job {job_id!r} refused: {one_line(error)}"
        self._refusals.note(name, job_id, text)
        return routing_pb2.Refusal(ordinal=ordinal, error=name, message=str(error)[:MAX_REFUSAL_LENGTH])

    async def _attempt_error(self, job_id: str, epoch: int, job: JobRecord | None) -> RelibraError | None:
        """Return why the attempt that a sequence names is refused; None if it is the current one.

        Raises:
            Unavailable: Redis did not answer, and the sender sends all of the batch again.
        """
        if job is None or epoch == job.epoch:
            return None
        try:
            return await self._store.over(job_id, check_epoch(epoch))
        except InvalidInput as error:
            return error

    def _decode(self, job_id: str, sequence: routing_pb2.SequenceRouting, job: JobRecord | None) -> SequenceCounts:
        if job is None:
            raise UnknownJob(f"job {job_id[:80]!r} is not registered; register it first")
        return SequenceCounts(
            job_id=job.job_id,
            epoch=job.epoch,
            step=None if (step := step_of(sequence)) is None else self._admission.check_step(step),
            sequence_id=sequence.sequence_id,
            counts_LE=decode_counts(sequence, job.model),
            policies=decode_policies(sequence),
        )


def _check_ordinals(batch: list[routing_pb2.ReportRoutingRequest], answered_through: int) -> int:
    """Return the ordinal of the last sequence of a batch."""
    last = answered_through
    for request in batch:
        if request.ordinal != last + 1:
            raise InvalidInput.of("ordinal", expected=str(last + 1), got=request.ordinal)
        if not request.sequences:
            raise InvalidInput.of("sequences", expected="at least one", got="none")
        last += len(request.sequences)
    if last - answered_through > CREDIT_SEQUENCES:
        raise LimitExceeded(
            f"{last - answered_through} sequences came at once, but the credit was {CREDIT_SEQUENCES}", limit="credit"
        )
    return last
