"""The planner as a trainer sees it: a thin synchronous client with deadlines and the error tree.

The trainer driver (register, pack, submit) and every agent (fetch, report) use it. Rollout workers use
`relibra.rollout`, which streams.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.planning import ExecutionReport, Freedom, Model, Schedule, StepPlan
from relibra.planning.schedule import PackingRules
from relibra.v1 import execution_pb2_grpc, plan_pb2, plan_pb2_grpc
from relibra.wire import messages
from relibra.wire.attempt_client import AttemptClient
from relibra.wire.channel import MAX_PART_SIZE_BYTES
from relibra.wire.credentials import Credentials
from relibra.wire.packing import decode_packed, encode_pack_request


class PlannerClient(AttemptClient):
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
            attempt: the token of the launch, a text that all of its processes share and that no other launch has; by
                default `RELIBRA_ATTEMPT` in the environment, and without it a random text for this process.

        Raises:
            InvalidInput: a file of the credentials cannot be read or used.
        """
        super().__init__(address, timeout_s=timeout_s, credentials=credentials, attempt=attempt)
        self._plans = plan_pb2_grpc.PlanServiceStub(self._channel)
        self._submit_parts = self._channel.stream_unary(
            "/relibra.v1.PlanService/SubmitSchedule",
            request_serializer=bytes,
            response_deserializer=plan_pb2.SubmitScheduleResponse.FromString,
        )
        self._executions = execution_pb2_grpc.ExecutionServiceStub(self._channel)

    def claim_sequences(self, job_id: str, step: int, sequence_ids: Sequence[str]) -> list[int]:
        """Return the places of the sequences that the planner lacks for a step: report these, and no others.

        A sequence that was reported without a step belongs to the step from now on.

        Raises:
            UnknownJob: register first.
            StaleEpoch: the attempt of this client is over.
        """
        request = plan_pb2.ClaimSequencesRequest(
            job_id=job_id, step=step, sequence_ids=sequence_ids, epoch=self._epoch(job_id)
        )
        return list(self._call_in_attempt(job_id, self._plans.ClaimSequences, request).missing)

    def submit_schedule(
        self,
        job_id: str,
        step: int | None,
        sequence_ids: Sequence[str],
        schedule: Schedule | None = None,
    ) -> int:
        """Submit what a step trains on; return the step when that is durable. `fetch_plan` returns the plan once made.

        A step that nobody submits is planned from the loads of earlier steps (level history).

        Args:
            job_id: the job.
            step: the step. Submit it before its ranks begin it. None for the step after all that were scheduled,
                reported or trained, for callers that do not count steps.
            sequence_ids: the names of its sequences in the reports of their routing. Reports without a step will do.
                A sequence that is trained twice may be named twice.
            schedule: which of them share a micro-batch (level micro-batches). None: the planner plans for any
                micro-batches of these sequences (level step), until a call with the schedule follows.

        Raises:
            UnknownJob: register first.
            InvalidInput: a rank, group or array is wrong.
            NotFound: scheduled sequences were never reported; the text names the first ones.
            Conflict: the step has another schedule already, which says as much as this one or more.
            StaleEpoch: the attempt of this client is over: another launch trains the job now.
            RolledBack: somebody let the job go back to an earlier step, and the schedule may be older. The client
                goes on in the attempt that took over with the first step that it submits again.
        """
        request = plan_pb2.SubmitScheduleRequest(
            job_id=job_id,
            step=step,
            schedule=messages.encode_schedule(list(sequence_ids), schedule),
            epoch=self._epoch(job_id),
        )
        return int(self._call_in_attempt(job_id, self._submit, request).step)

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

    def pack(
        self,
        job_id: str,
        step: int,
        sequence_ids: Sequence[str],
        length_S: NDArray[np.integer],
        start: Schedule,
        *,
        freedom: Freedom = Freedom.MICRO_BATCHES,
        keeps_counts: bool = False,
        token_budget: int | None = None,
        timeout_s: float | None = None,
    ) -> tuple[Schedule, str]:
        """Ask for a better schedule of sequences whose routing was reported for this step; return it, and why.

        The planner keeps only how that ended: submit the schedule that the training follows. It packs for the placement
        that the experts have now, and never returns a schedule that it judges costlier than `start`.

        Args:
            job_id: the job.
            step: the step for which the sequences were reported. Those that no schedule names later are ignored.
            sequence_ids: their names in the reports.
            length_S: tokens of every sequence.
            start: what the training would do without packing. Only the ranks that it names get sequences. Where a
                data-parallel rank spans several EP ranks, it names the first of them.
            freedom: what may change in `start`.
            keeps_counts: whether every source rank keeps its number of sequences in every row.
            token_budget: the most tokens of a source rank in a micro-batch; by default what `start` needs.
            timeout_s: the deadline of this call; by default the client's.

        Raises:
            UnknownJob: register first.
            InvalidInput: a rank, group or array is wrong, a sequence appears twice, or `start` exceeds the budget.
            NotFound: sequences were never reported; the text names the first ones.
            LimitExceeded: the step is too large to be packed while the driver waits.
            StaleEpoch: the attempt of this client is over.
            RolledBack: somebody let the job go back to an earlier step, and this client did not register the job.
            Unsupported: the planner is older than this call.
            Unavailable: there was no answer in time, or the planner still warms up. Go on with `start`.
        """
        request = encode_pack_request(
            job_id,
            step,
            sequence_ids,
            length_S,
            start,
            PackingRules(freedom=freedom, keeps_counts=keeps_counts, token_budget=token_budget),
            self._epoch(job_id),
        )
        response = self._call_in_attempt(job_id, self._plans.Pack, request, timeout_s)
        return decode_packed(response, len(sequence_ids))

    def fetch_plan(self, job_id: str, step: int, model: Model, *, wait_s: float = 0.0) -> StepPlan | None:
        """Return the plan of `step` as ranks execute it; wait up to `wait_s` until it is published.

        If nobody has submitted the step, this is the newest plan from history, which may be that of an earlier step, or
        None before there is one. The planner waits for at most 60 s. `wait_s` is added to the deadline of the call.

        Raises:
            UnknownJob: the job was never registered.
            NotReady: there is no plan yet, or no longer; the text says what the plan waits for.
            InvalidInput: the planner cannot plan this step; the text says why.
            StaleEpoch: the attempt of this client is over.
        """
        request = plan_pb2.FetchPlanRequest(
            job_id=job_id,
            step=step,
            wait_ms=int(wait_s * 1000),
            epoch=self._epoch(job_id),
        )
        response = self._call_in_attempt(job_id, self._plans.FetchPlan, request, timeout_s=self._timeout_s + wait_s)
        return messages.decode_step_plan(response.plan, model) if response.HasField("plan") else None

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
