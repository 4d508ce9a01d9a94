"""The gRPC service that takes schedules and hands out plans."""

import asyncio
import contextlib
import time
from typing import Any

from relibra.errors import InvalidInput, NotFound, NotReady, RelibraError, Unavailable
from relibra.planner.limits.admission import MAX_FETCH_WAIT_S, Admission
from relibra.planner.limits.solve_size import check_packing, check_schedule
from relibra.planner.loop.planning_loop import PlanningLoop
from relibra.planner.plan_notifier import PlanNotifier
from relibra.planner.serve.attempt_watch import AttemptWatch, check_epoch
from relibra.planner.serve.plan_cache import PlanCache
from relibra.planner.serve.step_watch import StepWatch
from relibra.planner.solve.packing import PackTask
from relibra.planning import Schedule
from relibra.planning.plan import Level
from relibra.store import JobRecord, PackingState, Refused, StepRecord, StepState, Store
from relibra.v1 import plan_pb2, plan_pb2_grpc
from relibra.wire.job_id import check_job_id
from relibra.wire.messages import decode_schedule, decode_sequences, has_micro_batches
from relibra.wire.packing import decode_pack_request, encode_packed

_NUM_NAMED = 3


class PlanService(plan_pb2_grpc.PlanServiceServicer):
    """Keeps schedules in the store and serves the plans that are published there."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        attempts: AttemptWatch,
        notifier: PlanNotifier,
        cache: PlanCache,
        planning: PlanningLoop,
    ) -> None:
        self._store = store
        self._attempts = attempts
        self._admission = admission
        self._planning = planning
        self._cache = cache
        self._steps = StepWatch(store, notifier)

    async def SubmitSchedule(
        self, request: plan_pb2.SubmitScheduleRequest, context: Any
    ) -> plan_pb2.SubmitScheduleResponse:
        """Keep the schedule of a step, whose sequences must have been reported."""
        job = await self._attempts.job(check_job_id(request.job_id), request.epoch)
        named = request.step if request.HasField("step") else await self._store.next_step(job)
        step = self._admission.check_step(named)
        try:
            await self._keep_schedule(job, step, request)
        except RelibraError as error:
            if not error.retryable:
                await self._store.note_refusal(job, Refused.SCHEDULE, step, error)
            raise
        await self._store.forget_refusals(job)
        self._planning.wake(job.job_id)
        return plan_pb2.SubmitScheduleResponse(step=step)

    async def ClaimSequences(
        self, request: plan_pb2.ClaimSequencesRequest, context: Any
    ) -> plan_pb2.ClaimSequencesResponse:
        """Take sequences that were reported without a step into a step; say which were not reported at all."""
        job = await self._attempts.job(check_job_id(request.job_id), request.epoch)
        step = self._admission.check_step(request.step)
        self._admission.check_num_sequences(len(request.sequence_ids))
        sequence_ids = list(request.sequence_ids)
        missing = set(await self._store.claim(job, step, sequence_ids, self._admission.store_limits))
        places = [place for place, sequence_id in enumerate(sequence_ids) if sequence_id in missing]
        return plan_pb2.ClaimSequencesResponse(missing=places)

    async def _keep_schedule(self, job: JobRecord, step: int, request: plan_pb2.SubmitScheduleRequest) -> None:
        self._admission.check_num_sequences(len(request.schedule.sequence_ids))
        sequence_ids, schedule = await self._admission.large.work(
            request.ByteSize(), lambda: self._decode_schedule(job, request.schedule)
        )
        await self._check_reported(job, step, sequence_ids)
        await self._store.put_schedule(job, step, sequence_ids, schedule, self._admission.store_limits)
        self._cache.forget(job.job_id)  # what this step had of a lower level is not its plan any more

    def _decode_schedule(self, job: JobRecord, message: plan_pb2.Schedule) -> tuple[list[str], Schedule | None]:
        """Decode and check a schedule; this runs in a thread if the schedule is large."""
        if not has_micro_batches(message):
            return decode_sequences(message), None
        sequence_ids, schedule = decode_schedule(message, job.cluster)
        check_schedule(self._admission, job, schedule)
        return sequence_ids, schedule

    async def Pack(self, request: plan_pb2.PackRequest, context: Any) -> plan_pb2.PackResponse:
        """Return a schedule that is no worse than the caller's own, for reported sequences; keep how far that is."""
        job = await self._attempts.job(check_job_id(request.job_id), request.epoch)
        step = self._admission.check_step(request.step)
        began_s = time.monotonic()
        try:
            schedule, reason = await self._pack(job, step, request)
        except RelibraError as error:
            await self._note_packing(job, step, PackingState.REFUSED, str(error))
            raise
        except asyncio.CancelledError:
            text = f"the driver stopped waiting after {time.monotonic() - began_s:.1f} s"
            await self._note_packing(job, step, PackingState.REFUSED, text)
            raise
        await self._note_packing(job, step, PackingState.PACKED, reason)
        return encode_packed(schedule, reason)

    async def _pack(self, job: JobRecord, step: int, request: plan_pb2.PackRequest) -> tuple[Schedule, str]:
        self._admission.check_num_sequences(len(request.start.sequence_ids))
        task = await self._admission.large.work(request.ByteSize(), lambda: self._decode_task(job, step, request))
        await self._check_reported(job, step, task.sequence_ids)
        with self._admission.packings.hold(job.job_id):
            await self._note_packing(job, step, PackingState.QUEUED)
            return await self._planning.pack(task)

    def _decode_task(self, job: JobRecord, step: int, request: plan_pb2.PackRequest) -> PackTask:
        """Decode and check a request to pack; this runs in a thread if it is large."""
        sequence_ids, length_S, start, rules = decode_pack_request(request, job.cluster)
        check_packing(self._admission, job, start)
        return PackTask(job=job, step=step, sequence_ids=sequence_ids, length_S=length_S, start=start, rules=rules)

    async def _note_packing(self, job: JobRecord, step: int, state: PackingState, text: str = "") -> None:
        """Keep how far a packing is, for the pages; a caller who waits must hear of it even if Redis is away."""
        with contextlib.suppress(Unavailable):
            await self._store.note_packing(job, step, state, text)

    async def FetchPlan(self, request: plan_pb2.FetchPlanRequest, context: Any) -> plan_pb2.FetchPlanResponse:
        """Return the plan of a step as soon as it is published; without a schedule, the newest one from history."""
        job_id, step = check_job_id(request.job_id), self._admission.check_step(request.step)
        epoch = check_epoch(request.epoch)
        plan = await self._cache.get(job_id, epoch, step)
        if plan is None:
            job = await self._attempts.job(job_id, epoch)
            record = await self._wait_for_plan(job, step, min(request.wait_ms / 1000, MAX_FETCH_WAIT_S))
            published = record.plan or await self._store.plan_before(job, step)
            if published is None or (published.step < step and published.prediction.level is not Level.HISTORY):
                return plan_pb2.FetchPlanResponse()
            plan = await self._cache.get(job_id, epoch, published.step)
        else:
            await self._attempts.see(job_id, epoch)
        if plan is None:
            raise NotReady(f"step {step} no longer has a plan: its job was re-created, or newer steps replaced it")
        return plan

    async def _check_reported(self, job: JobRecord, step: int, sequence_ids: list[str]) -> None:
        missing = await self._store.claim(job, step, sequence_ids, self._admission.store_limits, all_or_none=True)
        if missing:
            named = ", ".join(map(repr, missing[:_NUM_NAMED])) + (", ..." if len(missing) > _NUM_NAMED else "")
            raise NotFound(
                f"{len(missing)} of {len(sequence_ids)} scheduled sequences were never reported for step {step} of job "
                f"{job.job_id!r}: {named}; report them and call again"
            )

    async def _wait_for_plan(self, job: JobRecord, step: int, wait_s: float) -> StepRecord:
        """Return the state of a step that has its plan, or that nobody scheduled."""
        record = await self._steps.wait(job, step, wait_s)
        if record.failure is not None and record.plan is None and record.level is not Level.HISTORY:
            raise InvalidInput(f"step {step} cannot be planned: {record.failure}")
        if record.is_awaited:
            raise NotReady(f"step {step} has no plan yet: {_waiting_for(record, self._planning.obstacle)}")
        return record


def _waiting_for(record: StepRecord, obstacle: str) -> str:
    if record.submitted_at is None:
        return f"waiting for its schedule ({record.num_sequences} sequences reported so far)"
    waiting_s = max(0.0, time.time() - record.submitted_at)
    if obstacle:
        return f"waiting for {waiting_s:.1f} s; unless another planner solves it, it waits for this one: {obstacle}"
    if record.state is StepState.QUEUED:
        return f"waiting for a solver for {waiting_s:.1f} s: all are busy with other jobs or earlier steps"
    return f"being solved, {waiting_s:.1f} s after its schedule came"
