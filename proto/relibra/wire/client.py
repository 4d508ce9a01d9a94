"""The planner as seen by a trainer: a thin synchronous client with deadlines and the error tree.

Used by the trainer driver (register, submit) and by every agent (fetch, report). Rollout workers stream instead, see
`relibra.rollout`.
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
    """One channel to the planner. Safe to share between threads; must not be used across a fork.

    Every method raises the error the planner raised (see `relibra.errors`), or `Unavailable` after `timeout_s` without
    an answer. All calls are idempotent: repeating one after `Unavailable` is always right, and is done once within the
    deadline. What it shows the planner comes from the environment, see `Credentials.from_env`, unless it is given.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0, credentials: Credentials | None = None) -> None:
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
        """Close the channel; calls in flight fail with `Unavailable`."""
        self._channel.close()

    def register_job(self, job_id: str, model: Model, cluster: Cluster, params: PlanParams | None = None) -> int:
        """Register a job, or confirm that it is registered with this very content; return its epoch.

        Where the planner has lost its state since this client last registered the job, the new epoch is above the old.

        Raises:
            InvalidInput: a field is out of range, or the ranks do not divide the experts.
            Conflict: the job exists with other content.
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
        """Hand over the schedule of a step; returns when it is durable, and the plan follows.

        `basis` says what the plan can go by. With `PREVIOUS_STEPS` nothing of this step needs to be reported before:
        what is reported for it later counts for the steps after it.

        Raises:
            UnknownJob: register first.
            InvalidInput: a rank, group or array is wrong, or a sequence is scheduled twice.
            NotFound: a scheduled sequence was never reported; the text names the first ones.
            Conflict: the step already has another schedule, or this one on another basis.
        """
        request = plan_pb2.SubmitScheduleRequest(
            job_id=job_id,
            step=step,
            schedule=messages.encode_schedule(list(sequence_ids), schedule),
            basis=messages.encode_basis(basis),
        )
        self._call(self._plans.SubmitSchedule, request)

    def fetch_plan(self, job_id: str, step: int, model: Model, ep_rank: int, *, wait_s: float = 0.0) -> RankPlan:
        """Return the plan of `step` as `ep_rank` executes it, waiting up to `wait_s` for it to be published.

        Raises:
            UnknownJob: the job was never registered.
            NotReady: there is no plan yet; the text says what it is waiting for.
            InvalidInput: the planner failed to plan this step for good; the text says why.
        """
        request = plan_pb2.FetchPlanRequest(job_id=job_id, step=step, ep_rank=ep_rank, wait_ms=int(wait_s * 1000))
        response = self._call(self._plans.FetchPlan, request, timeout_s=self._timeout_s + wait_s)
        return messages.decode_rank_plan(response.plan, model)

    def report_execution(self, job_id: str, report: ExecutionReport) -> None:
        """Report what this rank did in one phase.

        Raises:
            UnknownJob: the job was never registered.
        """
        self._call(self._executions.ReportExecution, messages.encode_execution_report(job_id, report))

    def _call(self, method: Callable[..., _Response], request: Message, timeout_s: float | None = None) -> _Response:
        try:
            return method(request, timeout=timeout_s or self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
