"""The gRPC service for the attempts of jobs: they begin, are joined, go back and end."""

import logging
from typing import Any

from relibra.errors import StaleEpoch, one_line
from relibra.planner.limits.admission import Admission
from relibra.planner.serve.attempt_watch import AttemptWatch, check_epoch
from relibra.planner.serve.plan_cache import PlanCache
from relibra.planning.launch import Launch
from relibra.store import Store
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.job_id import check_job_id
from relibra.wire.messages import check_token, decode_launch, decode_registration

logger = logging.getLogger(__name__)


class JobService(job_pb2_grpc.JobServiceServicer):
    """Keeps registrations in the store."""

    def __init__(self, store: Store, admission: Admission, attempts: AttemptWatch, cache: PlanCache) -> None:
        self._store = store
        self._admission = admission
        self._attempts = attempts
        self._cache = cache

    async def RegisterJob(self, request: job_pb2.RegisterJobRequest, context: Any) -> job_pb2.RegisterJobResponse:
        """Begin an attempt of a job, or confirm the current attempt for the process that began it."""
        job_id, model, cluster, params = decode_registration(request)
        launch = decode_launch(request)
        self._admission.check_registration(model, cluster, request.known_epoch)
        if not await self._store.get_jobs([job_id]):
            self._admission.check_num_jobs(job_id, await self._store.job_ids())
        try:
            job = await self._store.register_job(
                job_id, model, cluster, params, known_epoch=request.known_epoch, launch=launch
            )
        except StaleEpoch as error:
            await self._attempts.note_older(job_id, request.known_epoch, error)
            raise
        self._cache.forget(job_id)
        about = {"job": job_id, "epoch": job.epoch, "attempt": job.number}
        logger.info(
            "job %s registered by %s: attempt %d, epoch %016x",
            job_id,
            one_line(request.owner) or "a client that does not say who it is",
            job.number,
            job.epoch,
            extra=about,
        )
        return job_pb2.RegisterJobResponse(epoch=job.epoch, attempt=job.number)

    async def JoinAttempt(self, request: job_pb2.JoinAttemptRequest, context: Any) -> job_pb2.JoinAttemptResponse:
        """Return the attempt of the caller's launch."""
        job_id, token = check_job_id(request.job_id), check_token(request.token)
        try:
            attempt = await self._store.join_attempt(job_id, Launch(token=token).token_hash)
        except StaleEpoch as error:
            await self._attempts.note_older(job_id, 0, error)
            raise
        return job_pb2.JoinAttemptResponse(epoch=attempt.epoch, attempt=attempt.number)

    async def EndAttempt(self, request: job_pb2.EndAttemptRequest, context: Any) -> job_pb2.EndAttemptResponse:
        """Note that the training of the caller's attempt ended."""
        job_id, epoch = check_job_id(request.job_id), check_epoch(request.epoch)
        await self._store.end_attempt(job_id, epoch)
        logger.info("job %s said that its training ended", job_id, extra={"job": job_id, "epoch": epoch})
        return job_pb2.EndAttemptResponse()

    async def Rollback(self, request: job_pb2.RollbackRequest, context: Any) -> job_pb2.RollbackResponse:
        """Let the caller's attempt go back to an earlier step, in a new attempt of the same launch."""
        job_id, step = check_job_id(request.job_id), self._admission.check_step(request.step)
        job = await self._store.rollback(job_id, check_epoch(request.epoch), step)
        await self._store.see(job_id, job.epoch)
        self._cache.forget(job_id)
        about = {"job": job_id, "epoch": job.epoch, "attempt": job.number, "step": step}
        logger.info(
            "job %s went back to step %d: attempt %d, epoch %016x", job_id, step, job.number, job.epoch, extra=about
        )
        return job_pb2.RollbackResponse(epoch=job.epoch, attempt=job.number)
