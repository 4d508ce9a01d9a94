"""The gRPC service that registers jobs."""

import logging
from typing import Any

from relibra.planner.admission import Admission
from relibra.store import Store
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.messages import decode_registration

logger = logging.getLogger(__name__)


class JobService(job_pb2_grpc.JobServiceServicer):
    """Keeps registrations in the store."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self._store = store
        self._admission = admission

    async def RegisterJob(self, request: job_pb2.RegisterJobRequest, context: Any) -> job_pb2.RegisterJobResponse:
        """Register a job, or confirm that it is registered with the same content."""
        job_id, model, cluster, params = decode_registration(request)
        self._admission.check_registration(model, cluster, request.known_epoch)
        if not await self._store.get_jobs([job_id]):
            self._admission.check_num_jobs(await self._store.num_jobs())
        job = await self._store.register_job(job_id, model, cluster, params, known_epoch=request.known_epoch)
        logger.info("job %s registered, epoch %016x", job_id, job.epoch, extra={"job": job_id, "epoch": job.epoch})
        return job_pb2.RegisterJobResponse(epoch=job.epoch)
