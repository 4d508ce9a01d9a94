"""The gRPC service that registers jobs, lets processes join their attempts, and lets trainings go back."""

import logging
import time
from collections import OrderedDict
from typing import Any

from relibra.errors import AlreadyRunning, InvalidInput, UnknownJob, shown
from relibra.planner.limits.admission import Admission
from relibra.planner.limits.refusal_log import RefusalLog
from relibra.planner.serve.health import Health
from relibra.planner.serve.plan_cache import PlanCache
from relibra.planner.serve.takeover import takeover_silence_s
from relibra.planning.launch import Launch
from relibra.store import Joiner, Refused, Store
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.job_id import check_job_id
from relibra.wire.messages import check_launch_text, decode_launch, decode_registration

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S = 600.0
_NOTE_INTERVAL_S = 1.0
_MAX_NOTED = 1024


class JobService(job_pb2_grpc.JobServiceServicer):
    """Keeps registrations in the store."""

    def __init__(
        self, store: Store, admission: Admission, health: Health, cache: PlanCache, attempt_silence_s: float
    ) -> None:
        self._store = store
        self._cache = cache
        self._health = health
        self._attempt_silence_s = attempt_silence_s
        self._admission = admission
        # A refused launch asks each second, each of its ranks every few seconds, and two may fight for hours.
        self._refusals = RefusalLog(logger, interval_s=_LOG_INTERVAL_S)
        self._noted_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    async def RegisterJob(self, request: job_pb2.RegisterJobRequest, context: Any) -> job_pb2.RegisterJobResponse:
        """Begin an attempt of a job, or confirm the current attempt for another process of the same launch."""
        job_id, model, cluster, params = decode_registration(request)
        self._admission.check_registration(model, cluster, request.known_epoch)
        if not await self._store.get_jobs([job_id]):
            self._admission.check_num_jobs(await self._store.num_jobs())
        launch = decode_launch(request)
        try:
            job = await self._store.register_job(
                job_id,
                model,
                cluster,
                params,
                known_epoch=request.known_epoch,
                launch=launch,
                silence_s=self._takeover_silence_s,
            )
        except AlreadyRunning as error:
            await self._tell_of_refusal(job_id, launch.owner, error)
            raise
        self._cache.forget(job_id)
        about = {"job": job_id, "epoch": job.epoch, "attempt": job.number}
        logger.info(
            "job %s registered by %s: attempt %d, epoch %016x",
            job_id,
            shown(request.owner) or "a client that does not say who it is",
            job.number,
            job.epoch,
            extra=about,
        )
        return job_pb2.RegisterJobResponse(epoch=job.epoch, attempt=job.number, renew_ms=self._renew_ms)

    async def JoinAttempt(self, request: job_pb2.JoinAttemptRequest, context: Any) -> job_pb2.JoinAttemptResponse:
        """Say which attempt the caller belongs to, and note that the caller is alive."""
        for field in ("token", "launch", "group", "owner"):
            check_launch_text(field, getattr(request, field))
        joiner = Joiner(
            token_hash=Launch(token=request.token).token_hash,
            is_shared=request.is_shared,
            launch=request.launch,
            epoch=request.epoch,
            group=request.group,
            owner=request.owner,
        )
        job_id = check_job_id(request.job_id)
        try:
            job, is_bound = await self._store.join_attempt(job_id, joiner, silence_s=self._takeover_silence_s)
        except AlreadyRunning as error:
            await self._tell_of_refusal(job_id, request.owner, error)
            raise
        return job_pb2.JoinAttemptResponse(
            epoch=job.epoch,
            attempt=job.number,
            launch=job.token_hash,
            is_bound=is_bound,
            renew_ms=self._renew_ms,
        )

    async def Rollback(self, request: job_pb2.RollbackRequest, context: Any) -> job_pb2.RollbackResponse:
        """Let the caller's attempt go back to an earlier step, in a new attempt of the same launch."""
        job_id, step = check_job_id(request.job_id), self._admission.check_step(request.step)
        if not request.epoch:
            raise InvalidInput.of("epoch", expected="the attempt of the caller: register the job first", got="none")
        job = await self._store.rollback(job_id, request.epoch, step)
        await self._store.see(job_id, job.epoch)
        self._cache.forget(job_id)
        about = {"job": job_id, "epoch": job.epoch, "attempt": job.number, "step": step}
        logger.info(
            "job %s went back to step %d: attempt %d, epoch %016x", job_id, step, job.number, job.epoch, extra=about
        )
        return job_pb2.RollbackResponse(epoch=job.epoch, attempt=job.number)

    @property
    def _takeover_silence_s(self) -> float:
        return takeover_silence_s(self._attempt_silence_s, self._health.answered_for_s)

    @property
    def _renew_ms(self) -> int:
        """How often an attempt must be renewed so that one lost renewal does not make it look silent."""
        return int(1000 * self._attempt_silence_s / 3)

    async def _tell_of_refusal(self, job_id: str, owner: str, error: AlreadyRunning) -> None:
        """Keep a refused launch for the page of its job, at most once a second, and log it."""
        who = shown(owner) or "a process that did not say who it is"
        now = time.monotonic()
        if now - self._noted_at.get((job_id, owner), -_NOTE_INTERVAL_S) < _NOTE_INTERVAL_S:
            return
        try:
            job = await self._store.get_job(job_id)
        except UnknownJob:
            return  # removed meanwhile; the caller hears why it was refused
        self._noted_at[job_id, owner] = now
        if len(self._noted_at) > _MAX_NOTED:
            self._noted_at.popitem(last=False)
        text = (
            f"{who} launched this job too, while attempt {job.number} is alive; two launches cannot share a job id. "
            "Stop one of the two, or give one of them another job id"
        )
        await self._store.note_refusal(job, Refused.LAUNCH, 0, AlreadyRunning(text))
        cause, text = f"{job_id} {owner}", f"job {job_id}: a launch by {who} is refused: {error}"
        self._refusals.note(cause, job_id, text, logging.WARNING)
