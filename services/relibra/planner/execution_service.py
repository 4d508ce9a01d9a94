"""Reports of what ranks did with their plans."""

from typing import Any

from relibra.planner.limits import check_step
from relibra.store import Store
from relibra.v1 import execution_pb2, execution_pb2_grpc
from relibra.wire.messages import check_job_id, decode_execution


class ExecutionService(execution_pb2_grpc.ExecutionServiceServicer):
    """Keeps execution reports in the store, for the status service to show."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def ReportExecution(
        self, request: execution_pb2.ReportExecutionRequest, context: Any
    ) -> execution_pb2.ReportExecutionResponse:
        """Keep the report of one rank and phase."""
        job = await self._store.get_job(check_job_id(request.job_id))
        check_step(request.step)
        await self._store.put_report(job.job_id, decode_execution(request, job.model, job.cluster))
        return execution_pb2.ReportExecutionResponse()
