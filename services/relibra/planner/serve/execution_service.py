"""The gRPC service for execution reports: what each rank did with its plan."""

from typing import Any

from relibra.errors import RelibraError
from relibra.planner.limits.admission import Admission
from relibra.planner.loop.planning_loop import PlanningLoop
from relibra.planner.serve.attempt_watch import AttemptWatch
from relibra.store import JobRecord, Refused, Store
from relibra.v1 import execution_pb2, execution_pb2_grpc
from relibra.wire.job_id import check_job_id
from relibra.wire.messages import decode_execution_report


class ExecutionService(execution_pb2_grpc.ExecutionServiceServicer):
    """Keeps execution reports in the store, where the status service reads them."""

    def __init__(self, store: Store, admission: Admission, attempts: AttemptWatch, planning: PlanningLoop) -> None:
        self._store = store
        self._attempts = attempts
        self._admission = admission
        self._planning = planning

    async def ReportExecution(
        self, request: execution_pb2.ReportExecutionRequest, context: Any
    ) -> execution_pb2.ReportExecutionResponse:
        """Keep the report of one rank for one phase."""
        job = await self._attempts.job(check_job_id(request.job_id), request.epoch)
        step = self._admission.check_step(request.step)
        try:
            await self._keep_report(job, request)
        except RelibraError as error:
            if not error.retryable:
                await self._store.note_refusal(job, Refused.REPORTS, step, error)
            raise
        return execution_pb2.ReportExecutionResponse()

    async def _keep_report(self, job: JobRecord, request: execution_pb2.ReportExecutionRequest) -> None:
        self._admission.check_reason(request.reason)
        # Checked before decoding: a deflated load grows to the size that its shape claims.
        # Every EP group runs the micro-batches of a step, so all their rows together are those of a step. Decoding
        # compares the other extent of the load with the number of layers before it inflates.
        num_micro_batches = next(iter(request.realised_load.shape), 0)
        self._admission.check_num_cells(job.cluster.num_ep_groups * num_micro_batches, job.model)
        report = decode_execution_report(request, job.model, job.cluster)
        if await self._store.put_report(job, report, self._admission.store_limits):
            self._planning.wake(job.job_id)
