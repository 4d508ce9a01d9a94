"""The gRPC service that registers jobs."""

import logging
from typing import Any

from relibra.planner.admission import Admission
from relibra.store import Store
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.messages import decode_launch, decode_registration

logger = logging.getLogger(__name__)


class JobService(job_pb2_grpc.JobServiceServicer):
    """Keeps registrations in the store."""

    def __init__(self, store: Store, admission: Admission, attempt_silence_s: float) -> None:
        self._store = store
        self._attempt_silence_s = attempt_silence_s
        self._admission = admission

    async def RegisterJob(self, request: job_pb2.RegisterJobRequest, context: Any) -> job_pb2.RegisterJobResponse:
        """Begin an attempt of a job, or confirm the current attempt for another process of the same launch."""
        job_id, model, cluster, params = decode_registration(request)
        self._admission.check_registration(model, cluster, request.known_epoch)
        if not await self._store.get_jobs([job_id]):
            self._admission.check_num_jobs(await self._store.num_jobs())
        job = await self._store.register_job(
            job_id,
            model,
            cluster,
            params,
            known_epoch=request.known_epoch,
            launch=decode_launch(request),
            silence_s=self._attempt_silence_s,
        )
        about = {"job": job_id, "epoch": job.epoch, "attempt": job.number}
        logger.info(
            "job %s registered by %s: attempt %d, epoch %016x",
            job_id,
            request.owner or "a client that does not say who it is",
            job.number,
            job.epoch,
            extra=about,
        )
        return job_pb2.RegisterJobResponse(epoch=job.epoch, attempt=job.number)
