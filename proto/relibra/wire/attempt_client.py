"""A client that belongs to attempts of jobs: registers and joins them, and follows where they go.

`relibra.wire.client` adds the calls that are made within an attempt.
"""

import logging
from collections.abc import Callable
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from relibra.errors import RolledBack, StaleEpoch
from relibra.planning import Cluster, Model, PlanParams
from relibra.v1 import job_pb2, job_pb2_grpc, plan_pb2
from relibra.wire import messages
from relibra.wire.channel import open_channel
from relibra.wire.credentials import Credentials
from relibra.wire.launch import this_launch
from relibra.wire.status import from_rpc_error

logger = logging.getLogger(__name__)

_Response = TypeVar("_Response")

_END_TIMEOUT_S = 5.0
"""How long a process that ends waits for a planner."""


class AttemptClient:
    """The attempts that a client belongs to, by job. One channel, on behalf of one launch of the training."""

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        attempt: str | None = None,
    ) -> None:
        """Prepare to call the planner; args as those of `PlannerClient`."""
        self._timeout_s = timeout_s
        self._channel = open_channel(address, credentials)
        self._launch = this_launch(attempt)
        self._epochs: dict[str, int] = {}
        """The attempt that this client registered or joined, by job id."""
        self._registered: dict[str, int] = {}
        """The attempt that this client registered or began by going back, by job id. It may be over: see `rollback`."""
        self._jobs = job_pb2_grpc.JobServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; open calls fail with `Unavailable`.

        Later calls raise `ValueError`, which gRPC raises for a channel that is closed.
        """
        self._channel.close()

    def register_job(
        self,
        job_id: str,
        model: Model,
        cluster: Cluster,
        params: PlanParams | None = None,
    ) -> int:
        """Begin an attempt of a job, or stay in the attempt that this process began; return the attempt's epoch.

        One process of a launch calls it, the driver. A restart of the training begins a new attempt: its steps are
        reported, scheduled and planned anew, whatever the attempt before did, and it may have another model or cluster.
        An earlier launch that still lives trains on without plans. Later calls of this client belong to the attempt.

        Args:
            job_id: the name of the job.
            model: its MoE layers.
            cluster: its expert-parallel groups.
            params: how to plan for it.

        Raises:
            InvalidInput: a field is out of range, or the ranks do not divide the experts.
            Conflict: this process registered the job with other content.
            StaleEpoch: this process registered the job, and another launch did so later.
        """
        request = messages.encode_registration(
            job_id, model, cluster, params or PlanParams(), self._launch, self._epochs.get(job_id, 0)
        )
        epoch: int = self._call(self._jobs.RegisterJob, request).epoch
        self._epochs[job_id] = self._registered[job_id] = epoch
        return epoch

    def join_attempt(self, job_id: str) -> int:
        """Join the attempt that the launch of this client has now; return its epoch. Later calls belong to it.

        Calls of a client that has not registered the job join by themselves.

        Raises:
            UnknownJob: the job was never registered.
            NotReady: no process has registered the job with the token of this client.
            StaleEpoch: another launch has registered the job since.
        """
        self._epochs.pop(job_id, None)
        request = job_pb2.JoinAttemptRequest(job_id=job_id, token=self._launch.token)
        epoch: int = self._call(self._jobs.JoinAttempt, request).epoch
        self._epochs[job_id] = epoch
        return epoch

    def end_attempt(self, job_id: str) -> None:
        """Tell the planner that the training of this launch ended. Pages then say so, and no alert waits for it.

        A later `register_job` by the process that registered the job goes on in the attempt.

        Raises:
            UnknownJob: the job is not registered.
            StaleEpoch: the attempt of this client is over.
        """
        request = job_pb2.EndAttemptRequest(job_id=job_id, epoch=self._epoch(job_id))
        self._call_in_attempt(job_id, self._jobs.EndAttempt, request, _END_TIMEOUT_S)

    def rollback(self, job_id: str, step: int) -> int:
        """Go back to `step` without a restart; return the epoch of the attempt that begins with it.

        Call it when the training has loaded an older checkpoint and samples `step` and the steps after it again, before
        anything of them is reported. All earlier steps stay. What rollout workers and trainers still send of before is
        refused as `RolledBack`: hand the epoch to `RolloutReporter.follow`, and call `Agent.rollback` on all ranks. The
        same call by another process of the launch that registered the job changes nothing more.

        Raises:
            InvalidInput: this client has not registered the job.
            RolledBack: another process of the launch went back to another step; register the job again to go on there.
            StaleEpoch: the attempt of this client is over.
        """
        request = job_pb2.RollbackRequest(job_id=job_id, epoch=self._registered.get(job_id, 0), step=step)
        epoch: int = self._call(self._jobs.Rollback, request).epoch
        self._epochs[job_id] = self._registered[job_id] = epoch
        return epoch

    def _epoch(self, job_id: str) -> int:
        """Return the attempt that calls belong to."""
        return self._epochs.get(job_id) or self.join_attempt(job_id)

    def _call_in_attempt(
        self,
        job_id: str,
        method: Callable[..., _Response],
        request: plan_pb2.SubmitScheduleRequest
        | plan_pb2.ClaimSequencesRequest
        | plan_pb2.PackRequest
        | plan_pb2.FetchPlanRequest
        | job_pb2.EndAttemptRequest,
        timeout_s: float | None = None,
    ) -> _Response:
        """Make a call that belongs to the attempt of this client.

        If somebody else let the job go back to an earlier step, the client follows, and the call belongs to what is
        done now. A schedule of before is refused then: nobody has reported its sequences in the new attempt.
        """
        try:
            return self._call(method, request, timeout_s)
        except StaleEpoch as error:
            if job_id not in self._registered:
                self._epochs.pop(job_id, None)  # so that the next call joins the attempt that the launch has then
            if job_id not in self._registered or not isinstance(error, RolledBack):
                raise
            logger.warning("going on in the attempt that took over: %s", error)
            request.epoch = self.join_attempt(job_id)
            return self._call(method, request, timeout_s)

    def _call(self, method: Callable[..., _Response], request: Message, timeout_s: float | None = None) -> _Response:
        try:
            return method(request, timeout=timeout_s or self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
