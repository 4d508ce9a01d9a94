"""A client that belongs to attempts of jobs: registers and joins them, keeps them alive, and follows where they go.

`relibra.wire.client` adds the calls that are made within an attempt.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from relibra.errors import AlreadyRunning, RelibraError, RolledBack, StaleEpoch, Unavailable
from relibra.planning import Cluster, Model, PlanParams
from relibra.v1 import job_pb2, job_pb2_grpc, plan_pb2
from relibra.wire import messages
from relibra.wire.channel import open_channel
from relibra.wire.credentials import Credentials
from relibra.wire.heartbeat import DEFAULT_INTERVAL_S, Heartbeat
from relibra.wire.launch import ATTEMPT_VARIABLE, Joined, this_launch, worker_age_s
from relibra.wire.status import from_rpc_error

logger = logging.getLogger(__name__)

_Response = TypeVar("_Response")
_TAKEOVER_INTERVAL_S = 1.0


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
        self._shared_token = attempt or os.environ.get(ATTEMPT_VARIABLE, "")
        """The token, if other processes know it too; with it a client that did not register finds its attempt."""
        self._epochs: dict[str, int] = {}
        """The attempt that this client registered or joined, by job id."""
        self._registered: dict[str, int] = {}
        """The attempt that this client registered or began by going back, by job id. It may be over: see `rollback`."""
        self._refusals: dict[str, AlreadyRunning] = {}
        """Why the last registration was refused, by job id."""
        self._newest_submitted: dict[str, int] = {}
        """The highest step of the attempt for which the planner answered `submit_schedule`, by job id."""
        self._heartbeats: dict[str, Heartbeat] = {}
        self._jobs = job_pb2_grpc.JobServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; open calls fail with `Unavailable`, and this client no longer keeps its attempts alive.

        Later calls raise `ValueError`, which gRPC raises for a channel that is closed.
        """
        for heartbeat in self._heartbeats.values():
            heartbeat.stop()
        self._channel.close()

    def register_job(
        self,
        job_id: str,
        model: Model,
        cluster: Cluster,
        params: PlanParams | None = None,
        *,
        takeover_timeout_s: float = 60.0,
    ) -> int:
        """Begin an attempt of a job, or join the attempt that this launch began; return the attempt's epoch.

        A restart of the training begins a new attempt: its steps are reported, scheduled and planned anew, whatever the
        attempt before did, and it may have another model or cluster. While another attempt is alive, this call asks
        again until that attempt has fallen silent. Later calls of this client belong to the attempt. A thread of the
        client keeps the attempt alive until the client is closed or its process ends.

        Args:
            job_id: the name of the job.
            model: its MoE layers.
            cluster: its expert-parallel groups.
            params: how to plan for it.
            takeover_timeout_s: how long to wait for another attempt to fall silent; a killed one is silent after 15 s.

        Raises:
            InvalidInput: a field is out of range, or the ranks do not divide the experts.
            AlreadyRunning: another launch trains the job, and did not fall silent. Later calls for the job raise this
                error again, because they would reach the attempt of that launch.
            Conflict: this launch registered the job with other content.
        """
        deadline = time.monotonic() + takeover_timeout_s
        while True:
            launch = replace(self._launch, age_s=worker_age_s(os.environ))
            request = messages.encode_registration(
                job_id, model, cluster, params or PlanParams(), self._epochs.get(job_id, 0), launch
            )
            try:
                response = self._call(self._jobs.RegisterJob, request)
                self._refusals.pop(job_id, None)
                if response.epoch != self._registered.get(job_id):
                    self._newest_submitted.pop(job_id, None)
                self._epochs[job_id] = self._registered[job_id] = response.epoch
                self._keep_alive(job_id, response.renew_ms / 1000)
                return response.epoch
            except AlreadyRunning as error:
                self._refusals[job_id] = error
                if time.monotonic() >= deadline:
                    raise
                logger.info("waiting until another attempt has fallen silent: %s", error)
                time.sleep(min(_TAKEOVER_INTERVAL_S, takeover_timeout_s))

    def join_attempt(
        self, job_id: str, *, token: str, is_shared: bool, group: str, owner: str, launch: str = ""
    ) -> Joined:
        """Join the current attempt of a job as a trainer rank, or show that it is alive. Later calls belong to it.

        Args:
            job_id: the job.
            token: the token of the rank's launch.
            is_shared: whether the process that registers the job is known to have this token.
            group: a text that all trainer ranks of the launch share.
            owner: `<host>:<pid>` of their first rank, for people.
            launch: the launch that the rank is bound to by an earlier call; empty before.

        Raises:
            UnknownJob: the job was never registered.
            NotReady: the launch has not registered the job yet.
            AlreadyRunning: the trainer ranks of another launch train the job and are alive.
            StaleEpoch: the attempt of this launch is over.
            Unsupported: the planner is too old to know attempts.
        """
        request = job_pb2.JoinAttemptRequest(
            job_id=job_id,
            token=token,
            is_shared=is_shared,
            launch=launch,
            group=group,
            owner=owner,
            epoch=self._epochs.get(job_id, 0),
        )
        response = self._call(self._jobs.JoinAttempt, request)
        self._epochs[job_id] = response.epoch
        return Joined(
            epoch=response.epoch,
            launch=response.launch,
            is_bound=response.is_bound,
            renew_s=response.renew_ms / 1000 or DEFAULT_INTERVAL_S,
        )

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
        self._newest_submitted.pop(job_id, None)
        return epoch

    def _epoch(self, job_id: str) -> int:
        """Return the attempt that calls belong to; 0 means the current attempt."""
        if job_id in self._refusals:
            raise AlreadyRunning(str(self._refusals[job_id]))
        return self._epochs.get(job_id, 0)

    def _attempt_of_launch(self, job_id: str) -> int:
        """Return the attempt that this launch has now, and show that the driver is alive.

        Another client of the launch registered it, or somebody let the job go back to an earlier step.
        """
        request = job_pb2.JoinAttemptRequest(job_id=job_id, token=self._launch.token)
        try:
            self._epochs[job_id] = self._call(self._jobs.JoinAttempt, request).epoch
        except (StaleEpoch, Unavailable):
            raise
        except RelibraError:  # most often NotReady: a process with another token registered the job
            pass
        return self._epochs.get(job_id, 0)

    def _keep_alive(self, job_id: str, interval_s: float) -> None:
        if job_id in self._heartbeats:
            self._heartbeats.pop(job_id).stop()
        if interval_s:  # older planners do not know the call
            self._heartbeats[job_id] = Heartbeat(lambda: self._renew(job_id), interval_s, f"job {job_id!r}")

    def _renew(self, job_id: str) -> None:
        """Show that the process that registered a job is alive."""
        request = job_pb2.JoinAttemptRequest(job_id=job_id, token=self._launch.token, epoch=self._epochs[job_id])
        self._call(self._jobs.JoinAttempt, request)

    def _call_in_attempt(
        self,
        job_id: str,
        method: Callable[..., _Response],
        request: plan_pb2.SubmitScheduleRequest | plan_pb2.PackRequest | plan_pb2.FetchPlanRequest,
        timeout_s: float | None = None,
        *,
        may_follow: bool = True,
    ) -> _Response:
        """Make a call that belongs to the attempt of this client.

        If somebody else let the job go back to an earlier step, the client follows if it may, and the call belongs to
        what is done now.
        """
        try:
            return self._call(method, request, timeout_s)
        except RolledBack as error:
            if job_id not in self._registered:
                raise
            if not may_follow:
                raise RolledBack(
                    f"{error}. The schedule of step {request.step} was not submitted, because it may be of before: go "
                    "back to that step in the training, sample it again, and submit its schedule"
                ) from error
            logger.warning("going on in the attempt that took over: %s", error)
            request.epoch = self._attempt_of_launch(job_id)
            return self._call(method, request, timeout_s)

    def _call(self, method: Callable[..., _Response], request: Message, timeout_s: float | None = None) -> _Response:
        try:
            return method(request, timeout=timeout_s or self._timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
