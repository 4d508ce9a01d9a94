"""The planner as a trainer sees it: a thin synchronous client with deadlines and the error tree.

The trainer driver (register, submit) and every agent (fetch, report) use it. Rollout workers use `relibra.rollout`,
which streams.
"""

from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from relibra.planning import Cluster, ExecutionReport, Model, PlanParams, RankPlan, Schedule
from relibra.planning.plan import Basis
from relibra.v1 import (
    execution_pb2_grpc,
    job_pb2_grpc,
    plan_pb2,
    plan_pb2_grpc,
)
from relibra.wire import messages
from relibra.wire.channel import open_channel
from relibra.wire.credentials import Credentials
from relibra.wire.status import from_rpc_error

_Response = TypeVar("_Response")


class PlannerClient:
    """One channel to the planner. Threads may share a client, but it must not be used across a fork.

    Every method raises the error that the planner raised (see `relibra.errors`), or `Unavailable` after `timeout_s`
    without an answer. All calls are idempotent, so a caller may repeat a call after `Unavailable`. If the planner
    cannot be reached, the client itself repeats the call once within the deadline. Leaving a `with` block closes the
    client.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0, credentials: Credentials | None = None) -> None:
        """Prepare to call the planner at `address`; the first call connects.

        Args:
            address: the planner as `host:port`.
            timeout_s: the deadline of every call.
            credentials: by default those in the environment, see `Credentials.from_env`.

        Raises:
            InvalidInput: a file of the credentials cannot be read or used.
        """
        self._timeout_s = timeout_s
        self._channel = open_channel(address, credentials)
        self._known_epochs: dict[str, int] = {}
        self._jobs = job_pb2_grpc.JobServiceStub(self._channel)
        self._plans = plan_pb2_grpc.PlanServiceStub(self._channel)
        self._executions = execution_pb2_grpc.ExecutionServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; open calls fail with `Unavailable`."""
        self._channel.close()

    def register_job(self, job_id: str, model: Model, cluster: Cluster, params: PlanParams | None = None) -> int:
        """Register a job, or confirm that it is registered with the same content; return its epoch.

        The epoch rises when a job is created anew. If the planner has lost its state since this client last registered
        the job, the new epoch is above the old one.

        Raises:
            InvalidInput: a field is out of range, or the ranks do not divide the experts.
            Conflict: the job is registered with other content.
        """
        request = messages.encode_registration(
            job_id, model, cluster, params or PlanParams(), self._known_epochs.get(job_id, 0)
        )
        epoch: int = self._call(self._jobs.RegisterJob, request).epoch
        self._known_epochs[job_id] = epoch
        return epoch

    def submit_schedule(
        self,
        job_id: str,
        step: int,
        sequence_ids: Sequence[str],
        schedule: Schedule,
        basis: Basis = Basis.REPLAY,
    ) -> None:
        """Submit the schedule of a step; return when it is durable. `fetch_plan` returns the plan once it is made.

        `basis` says what the loads of the plan are based on. With `PREVIOUS_STEPS` no sequence of this step needs to be
        reported first; sequences that are reported later count for the plans of later steps.

        Raises:
            UnknownJob: register first.
            InvalidInput: a rank, group or array is wrong, or a sequence is scheduled twice.
            NotFound: scheduled sequences were never reported; the text names the first ones.
            Conflict: the step already has another schedule or another basis.
            StaleEpoch: the job was re-created during the call; register it again.
        """
        request = plan_pb2.SubmitScheduleRequest(
            job_id=job_id,
            step=step,
            schedule=messages.encode_schedule(list(sequence_ids), schedule),
            basis=messages.encode_basis(basis),
        )
        self._call(self._plans.SubmitSchedule, request)

    def fetch_plan(self, job_id: str, step: int, model: Model, ep_rank: int, *, wait_s: float = 0.0) -> RankPlan:
        """Return the plan of `step` as `ep_rank` executes it; wait up to `wait_s` until it is published.

        The planner waits for at most 60 s. `wait_s` is added to the deadline of the call.

        Raises:
            UnknownJob: the job was never registered.
            NotReady: there is no plan yet, or no longer; the text says what the plan waits for.
            InvalidInput: the planner cannot plan this step, or the job has no such rank; the text says why.
        """
        request = plan_pb2.FetchPlanRequest(job_id=job_id, step=step, ep_rank=ep_rank, wait_ms=int(wait_s * 1000))
        response = self._call(self._plans.FetchPlan, request, timeout_s=self._timeout_s + wait_s)
        return messages.decode_rank_plan(response.plan, model)

    def report_execution(self, job_id: str, report: ExecutionReport) -> None:
        """Report to the planner what a rank did in one phase.

        Raises:
            UnknownJob: the job was never registered.
        """
        self._call(self._executions.ReportExecution, messages.encode_execution_report(job_id, report))

    def _call(self, method: Callable[..., _Response], request: Message, timeout_s: float | None = None) -> _Response:
        try:
            return method(request, timeout=timeout_s or self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
