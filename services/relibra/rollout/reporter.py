"""`RolloutReporter`: reports routed experts from a rollout worker to a planner.

T rows, L layers, K top-k.
"""

import logging
import threading
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, LimitExceeded, RelibraError, Unavailable
from relibra.planning.load import narrow_counts
from relibra.rollout.outbox import CountedSequence, Outbox, Refused, RoutedSequence
from relibra.rollout.report_stream import ReportStream
from relibra.routing.sequence_routing import SequenceRouting
from relibra.wire.credentials import Credentials
from relibra.wire.routing import check_name

logger = logging.getLogger(__name__)

BUFFER_SIZE_BYTES = 256 << 20


class Tensor(Protocol):
    """The methods that relibra calls on a `torch.Tensor`; this package does not import torch."""

    def detach(self) -> Self:
        """Return the tensor without its graph."""

    def cpu(self) -> Self:
        """Return the tensor in host memory."""

    def numpy(self) -> NDArray[Any]:
        """Return an array over the same memory."""


class RolloutReporter:
    """Reports the routing of finished sequences to a planner, in the background.

    `report` never waits for the network: it copies the array and returns. A background thread counts and streams. After
    a lost connection or a planner restart it sends again the sequences that were not acknowledged, and only those.
    Threads may share a reporter. The background thread starts with the first report, so a reporter may be created
    before a fork, but only one side of the fork may use it.

        with RolloutReporter("planner:7420", "my-job", num_experts=128) as reporter:
            for output in llm.generate(prompts, sampling_params):
                for index, routing in enumerate(decode_output(output, layers)):
                    reporter.report(step, f"{output.request_id}/{index}", routing)
            reporter.flush()   # before the schedule of the step is submitted

    Leaving the `with` block without an error flushes; leaving it always closes.
    """

    def __init__(
        self,
        address: str,
        job_id: str,
        *,
        num_experts: int,
        buffer_size_bytes: int = BUFFER_SIZE_BYTES,
        credentials: Credentials | None = None,
        attempt: str | None = None,
    ) -> None:
        """Prepare to report to the planner at `address`; nothing is sent yet.

        Args:
            address: the planner's address, `host:port`.
            job_id: the job of the sequences.
            num_experts: E, the number of routed experts per layer.
            buffer_size_bytes: the most memory for sequences that are not durable yet; `report` drops what does not fit.
            credentials: how to authenticate; by default read from the environment.
            attempt: the token of the launch, as the trainer's `PlannerClient` has it; by default `RELIBRA_ATTEMPT` in
                the environment, and without it that of this process. The reporter waits until the driver has registered
                the job with it. Sequences are refused after another launch has registered the job.
        """
        self._address = address
        self._job_id = job_id
        self._buffer_size_bytes = buffer_size_bytes
        self._outbox = Outbox(num_experts=num_experts, limit_size_bytes=buffer_size_bytes)
        self._stream = ReportStream(address, job_id, self._outbox, credentials=credentials, attempt=attempt)
        self._dropping = threading.Lock()
        self._num_dropped = 0
        self._has_said_unplaced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, *_: object) -> None:
        try:
            if exc_type is None:
                self.flush()
        finally:
            self.close()

    @property
    def job_id(self) -> str:
        """The job of the sequences."""
        return self._job_id

    @property
    def epoch(self) -> int:
        """The attempt to which the next sequence will belong; 0 until the planner has said it."""
        return self._stream.epoch

    @property
    def trouble(self) -> RelibraError | None:
        """Why the stream to the planner broke; None again once the planner answers a sequence."""
        return self._stream.trouble

    @property
    def num_waiting(self) -> int:
        """The number of sequences that the planner has not answered yet."""
        return self._outbox.num_unanswered()

    def follow(self, epoch: int) -> None:
        """Let later sequences belong to an attempt, instead of waiting for a second or two until the planner names it.

        Args:
            epoch: what `PlannerClient.rollback` or `register_job` returned; one of an earlier attempt changes nothing.
        """
        self._stream.follow(epoch)

    @property
    def num_dropped(self) -> int:
        """The number of sequences that did not fit the buffer."""
        return self._num_dropped

    def report(
        self,
        step: int | None,
        sequence_id: str,
        routed_experts: SequenceRouting | NDArray[np.integer] | Tensor,
        *,
        policy_versions: tuple[int, int] | None = None,
    ) -> bool:
        """Report one finished sequence. The array is copied and may be reused at once.

        Expert ids and the number of layers are checked later, in the background: `flush` raises if they are wrong.

        Args:
            step: the step the sequence is trained in. None if that is not known: a step whose schedule names the
                sequence takes it, see `PlannerClient.submit_schedule`.
            sequence_id: its name within the step; the same name with the same content may be reported again. Without a
                step, the newest content of a name counts.
            routed_experts: what `decode_output`, `decode_response` or `join` returned; or expert ids `[T, L, K]` of any
                integer dtype.
            policy_versions: the versions of the policy that generated the first and the last row; a partial rollout has
                two different ones.

        Returns:
            Whether the sequence was taken. If the buffer is full, the sequence is dropped, and scheduling it will fail.

        Raises:
            InvalidInput: the array is not three-dimensional or not of integers, or a name or number cannot be sent.
            RelibraError: the reporter is closed. Or a sequence of another step was refused and nobody flushed since;
                the class is that of the first such refusal, and the sequence of this call was taken all the same.
        """
        check_name(step, sequence_id, policy_versions)
        if isinstance(routed_experts, SequenceRouting):
            self._note_place(sequence_id, routed_experts)
            routed_experts = routed_experts.narrow()
        array = np.asarray(
            routed_experts if isinstance(routed_experts, np.ndarray) else routed_experts.detach().cpu().numpy()
        )
        if array.ndim != 3 or array.dtype.kind not in "iu":
            raise InvalidInput.of(
                "routed_experts",
                expected="integers of shape [rows, layers, top_k]",
                got=f"{array.dtype} of shape {list(array.shape)}",
            )
        taken = self._outbox.put(
            RoutedSequence(
                step=step,
                sequence_id=sequence_id,
                routed_TLK=array.copy(),
                policy_versions=policy_versions,
                epoch=self._stream.epoch,
            )
        )
        if taken:
            self._stream.start()
        else:
            self._drop()
        self._raise(self._outbox.take_refused(but_of_step=step))
        return taken

    def report_counts(
        self,
        step: int | None,
        sequence_id: str,
        counts_LE: NDArray[np.unsignedinteger],
        num_rows: int,
        *,
        timeout_s: float = 60.0,
    ) -> None:
        """Report rows that were counted already; wait for room in the buffer if the planner is behind.

        Args:
            step: the RL step the rows are trained in.
            sequence_id: their name within the step; the same name with the same counts may be reported again.
            counts_LE: the rows of every layer and expert.
            num_rows: the number of rows.
            timeout_s: how long to wait for room.

        Raises:
            InvalidInput: a name or number cannot be sent.
            LimitExceeded: the counts are larger than the buffer.
            Unavailable: after `timeout_s` there is still no room, because the planner does not answer.
            RelibraError: the reporter is closed, or a sequence of another step was refused; see `report`.
        """
        check_name(step, sequence_id)
        counted = CountedSequence(
            step=step,
            sequence_id=sequence_id,
            num_rows=num_rows,
            counts_LE=narrow_counts(counts_LE),
            policy_versions=None,
            epoch=self._stream.epoch,
        )
        if counted.size_bytes > self._buffer_size_bytes:
            raise LimitExceeded(
                f"{sequence_id!r} of step {step}: {counted.size_bytes} bytes of counts do not fit the reporter, which "
                f"has {self._buffer_size_bytes}: raise its buffer_size_bytes"
            )
        self._stream.start()
        if not self._outbox.put(counted, timeout_s):
            raise Unavailable(
                f"the reporter's buffer of {self._buffer_size_bytes} bytes had no room within {timeout_s:g} s: check "
                f"that the planner at {self._address} answers"
            )
        self._raise(self._outbox.take_refused(but_of_step=step))

    def flush(self, timeout_s: float = 60.0) -> int:
        """Wait until the planner has answered every sequence that was reported before.

        Sequences that `report` dropped are not waited for, and raise nothing here.

        Returns:
            The number of sequences that became durable since the last flush.

        Raises:
            Unavailable: after `timeout_s` some sequences are not answered. They will still be sent; flush again.
            RolledBack: the first refused sequence was reported before the training went back to an earlier step.
            StaleEpoch: the first refused sequence belongs to an attempt that is over.
            RelibraError: the planner refused some sequences, which will not be sent again; the class is that of the
                first refusal. Or the planner refuses this reporter, for example because its token is for another job;
                then its sequences are not answered.
        """
        settled = self._outbox.settle_all(timeout_s)
        self._raise(settled.refused)
        if settled.num_waiting:
            trouble = self.trouble
            error = Unavailable if trouble is None or trouble.retryable else type(trouble)
            raise error(
                f"{settled.num_waiting} sequences were not acknowledged by the planner at {self._address} within "
                f"{timeout_s:g} s" + (f"; the last error was: {trouble}" if trouble else "")
            )
        return settled.num_kept

    def close(self) -> None:
        """Stop within a few seconds; a warning names sequences that are lost, and refusals that no call raised."""
        self._outbox.close()
        self._stream.close()
        if refused := self._outbox.take_refused():
            logger.warning(
                "the reporter was closed before anybody heard of %d refused sequences; the first is %s: %s",
                len(refused),
                refused[0],
                refused[0].error,
            )
        if lost := self._outbox.num_unanswered():
            logger.warning("the reporter was closed with %d sequences that the planner did not acknowledge", lost)

    def _note_place(self, sequence_id: str, routing: SequenceRouting) -> None:
        if not routing.is_placed and not self._has_said_unplaced:
            self._has_said_unplaced = True
            logger.warning(
                "%s does not tell its number of tokens: its first row is taken for the first token, which is wrong if "
                "the request left out a prefix; then pass start, or set return_token_ids in requests (include_usage in "
                "the stream_options of streamed ones)",
                sequence_id,
            )

    def _raise(self, refused: Sequence[Refused]) -> None:
        if refused:
            first = refused[0]
            raise type(first.error)(f"{len(refused)} sequences were refused; the first is {first}: {first.error}")

    def _drop(self) -> None:
        with self._dropping:
            self._num_dropped += 1
            is_first = self._num_dropped == 1
        if is_first:
            logger.warning(
                "a sequence was dropped because %d bytes already wait for the planner at %s: check that the planner "
                "answers, or raise buffer_size_bytes; num_dropped counts further drops",
                self._buffer_size_bytes,
                self._address,
            )
