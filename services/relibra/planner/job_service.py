"""Registration of jobs."""

import logging
from typing import Any

from relibra.planner.limits import check_model_size
from relibra.store import Store
from relibra.v1 import job_pb2, job_pb2_grpc
from relibra.wire.messages import decode_registration

logger = logging.getLogger(__name__)


class JobService(job_pb2_grpc.JobServiceServicer):
    """Keeps registrations in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def RegisterJob(self, request: job_pb2.RegisterJobRequest, context: Any) -> job_pb2.RegisterJobResponse:
        """Register a job, or confirm that it is registered with this very content."""
        job_id, model, cluster, params = decode_registration(request)
        check_model_size(model)
        job = await self._store.register_job(job_id, model, cluster, params)
        logger.info("job %s registered, epoch %016x", job_id, job.epoch)
        return job_pb2.RegisterJobResponse(epoch=job.epoch)
