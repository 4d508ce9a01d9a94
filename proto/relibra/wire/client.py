"""The planner as a trainer sees it: a thin synchronous client with deadlines and the error tree.

The trainer driver (register, submit) and every agent (fetch, report) use it. Rollout workers use `relibra.rollout`,
which streams.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from relibra.errors import AlreadyRunning, RelibraError, RolledBack, StaleEpoch, Unavailable
from relibra.planning import Cluster, ExecutionReport, Model, PlanParams, RankPlan, Schedule
from relibra.planning.plan import Basis
from relibra.v1 import (
    execution_pb2_grpc,
    job_pb2,
    job_pb2_grpc,
    plan_pb2,
    plan_pb2_grpc,
)
from relibra.wire import messages
from relibra.wire.channel import MAX_PART_SIZE_BYTES, open_channel
from relibra.wire.credentials import Credentials
from relibra.wire.heartbeat import DEFAULT_INTERVAL_S, Heartbeat
from relibra.wire.launch import ATTEMPT_VARIABLE, Joined, this_launch, worker_age_s
from relibra.wire.status import from_rpc_error

logger = logging.getLogger(__name__)

_Response = TypeVar("_Response")
_TAKEOVER_INTERVAL_S = 1.0


class PlannerClient:
    """One channel to the planner, on behalf of one launch of the training.

    Threads may share a client, but it must not be used across a fork. Every method raises the error that the planner
    raised (see `relibra.errors`), or `Unavailable` after `timeout_s` without an answer. All calls are idempotent, so a
    caller may repeat a call after `Unavailable`. If the planner cannot be reached, the client itself repeats the call
    once within the deadline. Leaving a `with` block closes the client.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = 10.0,
        credentials: Credentials | None = None,
        attempt: str | None = None,
    ) -> None:
        """Prepare to call the planner at `address`; the first call connects.

        Args:
            address: the planner as `host:port`.
            timeout_s: the deadline of every call.
            credentials: by default those in the environment, see `Credentials.from_env`.
            attempt: a text that all processes of this launch of the training share and that no other launch has; by
                default `RELIBRA_ATTEMPT` in the environment, and without it a random text for this process.

        Raises:
            InvalidInput: a file of the credentials cannot be read or used.
        """
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
        self._plans = plan_pb2_grpc.PlanServiceStub(self._channel)
        self._submit_parts = self._channel.stream_unary(
            "/relibra.v1.PlanService/SubmitSchedule",
            request_serializer=bytes,
            response_deserializer=plan_pb2.SubmitScheduleResponse.FromString,
        )
        self._executions = execution_pb2_grpc.ExecutionServiceStub(self._channel)

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
            StaleEpoch: the attempt of this client is over: another launch trains the job now.
            RolledBack: somebody let the job go back to an earlier step, and the schedule may be of before. The client
                goes on in the attempt that took over with the first step that it submits again.
        """
        request = plan_pb2.SubmitScheduleRequest(
            job_id=job_id,
            step=step,
            schedule=messages.encode_schedule(list(sequence_ids), schedule),
            basis=messages.encode_basis(basis),
            epoch=self._epoch(job_id) or self._attempt_of_launch(job_id),
        )
        newest = self._newest_submitted.get(job_id, -1)
        # With another basis the planner finds out whether the sequences of the schedule belong to the new attempt.
        may_follow = step <= newest or basis is not Basis.PREVIOUS_STEPS
        try:
            self._call_in_attempt(job_id, self._submit, request, may_follow=may_follow)
        except RolledBack:
            self._newest_submitted[job_id] = max(newest, step)
            raise
        has_followed = request.epoch != self._registered.get(job_id, request.epoch)
        self._newest_submitted[job_id] = step if has_followed else max(newest, step)

    def _submit(
        self, request: plan_pb2.SubmitScheduleRequest, timeout: float | None = None
    ) -> plan_pb2.SubmitScheduleResponse:
        if request.ByteSize() <= MAX_PART_SIZE_BYTES:
            return self._plans.SubmitSchedule(request, timeout=timeout)
        data = request.SerializeToString()
        starts = range(0, len(data), MAX_PART_SIZE_BYTES)
        parts = (data[start : start + MAX_PART_SIZE_BYTES] for start in starts)
        response: plan_pb2.SubmitScheduleResponse = self._submit_parts(parts, timeout=timeout)
        return response

    def fetch_plan(self, job_id: str, step: int, model: Model, ep_rank: int, *, wait_s: float = 0.0) -> RankPlan:
        """Return the plan of `step` as `ep_rank` executes it; wait up to `wait_s` until it is published.

        The planner waits for at most 60 s. `wait_s` is added to the deadline of the call.

        Raises:
            UnknownJob: the job was never registered.
            NotReady: there is no plan yet, or no longer; the text says what the plan waits for.
            InvalidInput: the planner cannot plan this step, or the job has no such rank; the text says why.
            StaleEpoch: the attempt of this client is over.
        """
        request = plan_pb2.FetchPlanRequest(
            job_id=job_id,
            step=step,
            ep_rank=ep_rank,
            wait_ms=int(wait_s * 1000),
            epoch=self._epoch(job_id),
            token=self._shared_token,
        )
        response = self._call_in_attempt(job_id, self._plans.FetchPlan, request, timeout_s=self._timeout_s + wait_s)
        return messages.decode_rank_plan(response.plan, model)

    def report_execution(self, job_id: str, report: ExecutionReport, *, epoch: int = 0) -> None:
        """Report to the planner what a rank did in one phase.

        Args:
            job_id: the job.
            report: what the rank did.
            epoch: the attempt in which the rank did it; 0 for the attempt that this client belongs to now.

        Raises:
            UnknownJob: the job was never registered.
            RolledBack: the report is about what the training did before it went back to an earlier step.
            StaleEpoch: the attempt of this client is over.
        """
        request = messages.encode_execution_report(job_id, report, epoch or self._epoch(job_id))
        self._call(self._executions.ReportExecution, request)

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
        request: plan_pb2.SubmitScheduleRequest | plan_pb2.FetchPlanRequest,
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
