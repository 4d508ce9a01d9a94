"""A planner on a real socket; a test scripts its answers."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from harness.step_plan_message import encode_step_plan
from relibra.errors import NotReady, RelibraError
from relibra.planning import Cluster, ExecutionReport, Model, StepPlan
from relibra.v1 import execution_pb2, execution_pb2_grpc, job_pb2, job_pb2_grpc, plan_pb2, plan_pb2_grpc
from relibra.wire import messages
from relibra.wire.status import to_status

PATIENT_S = 30.0


class ScriptedPlanner(
    job_pb2_grpc.JobServiceServicer, plan_pb2_grpc.PlanServiceServicer, execution_pb2_grpc.ExecutionServiceServicer
):
    """A planner that answers with `plans`, raises `errors`, keeps reports, and can be restarted on the same port."""

    def __init__(self, model: Model, cluster: Cluster) -> None:
        self._model, self._cluster = model, cluster
        self.plans: dict[int, StepPlan] = {}
        self.errors: dict[int, RelibraError] = {}
        self.asked: list[tuple[str, int, int]] = []
        self.held_ms: list[int] = []
        """How long the caller allowed each fetch to wait."""
        self.reports: list[ExecutionReport] = []
        self.hold = threading.Event()
        self.hold.set()
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        job_pb2_grpc.add_JobServiceServicer_to_server(self, self._server)
        plan_pb2_grpc.add_PlanServiceServicer_to_server(self, self._server)
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port(f"127.0.0.1:{self._port}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()

    def JoinAttempt(self, request: job_pb2.JoinAttemptRequest, context: grpc.ServicerContext) -> Any:
        return job_pb2.JoinAttemptResponse(epoch=1, attempt=1)

    def FetchPlan(self, request: plan_pb2.FetchPlanRequest, context: grpc.ServicerContext) -> Any:
        self.asked.append((request.job_id, request.step))
        self.held_ms.append(request.wait_ms)
        self.hold.wait(PATIENT_S)
        error = self.errors.get(request.step)
        if error is None and request.step not in self.plans:
            error = NotReady("the schedule is not there yet")
        if error is not None:
            code, details, metadata = to_status(error)
            context.set_trailing_metadata(metadata)
            context.abort(code, details)
        return plan_pb2.FetchPlanResponse(plan=encode_step_plan(self.plans[request.step]))

    def ReportExecution(self, request: execution_pb2.ReportExecutionRequest, context: grpc.ServicerContext) -> Any:
        self.reports.append(messages.decode_execution_report(request, self._model, self._cluster))
        return execution_pb2.ReportExecutionResponse()
