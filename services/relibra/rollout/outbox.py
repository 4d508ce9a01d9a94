"""The sequences that the planner has not answered yet: a bounded, thread-safe queue, free of gRPC.

T rows, L layers, K top-k, E experts.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from relibra.errors import RelibraError
from relibra.planning.load import narrow_counts
from relibra.routing.counts import count_routed_experts

_Encoded = TypeVar("_Encoded")
logger = logging.getLogger(__name__)

_NO_STEP = -1
_REQUEST_SIZE_BYTES = 128 << 10
"""A request ends when it has this size. The planner works on larger messages one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedSequence:
    """A sequence as the caller reported it."""

    step: int | None
    sequence_id: str
    routed_TLK: NDArray[np.integer]
    policy_versions: tuple[int, int] | None = None
    epoch: int = 0
    """The attempt that was current when the sequence was reported; 0 if the reporter did not know it yet."""

    @property
    def size_bytes(self) -> int:
        """The memory that it holds."""
        return self.routed_TLK.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSequence:
    """A sequence as the reporter sends it."""

    step: int | None
    sequence_id: str
    num_rows: int
    counts_LE: NDArray[np.unsignedinteger]
    """In the narrowest dtype, see `narrow_counts`."""
    policy_versions: tuple[int, int] | None
    epoch: int = 0
    """See `RoutedSequence`."""

    @property
    def size_bytes(self) -> int:
        """The memory that it holds."""
        return self.counts_LE.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A sequence that was not kept, with the reason."""

    step: int | None
    sequence_id: str
    error: RelibraError

    def __str__(self) -> str:
        """Return the name of the sequence."""
        return f"{self.sequence_id!r} " + ("without a step" if self.step is None else f"of step {self.step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The answers that came since the last call of `settle_all`."""

    num_kept: int
    refused: list[Refused]
    num_waiting: int
    """The number of sequences that were put before the call and are not answered yet."""


class Outbox:
    """A queue with a window: sequences go from waiting to sent, and leave when they are answered.

    One stream is open at a time, and it sends no further than the planner gave it credit. Answers come in the order of
    sending. When a stream ends, its unanswered sequences go back to the front of the queue. The thread that sends a
    sequence also counts and encodes it.
    """

    def __init__(
        self, *, num_experts: int, limit_size_bytes: int, request_size_bytes: int = _REQUEST_SIZE_BYTES
    ) -> None:
        self._num_experts = num_experts
        self._request_size_bytes = request_size_bytes
        self._limit_size_bytes = limit_size_bytes
        self._changed = threading.Condition()
        self._waiting: deque[RoutedSequence | CountedSequence] = deque()
        self._sent: deque[CountedSequence] = deque()
        self._size_bytes = 0
        self._stream = 0
        """The number of the open stream; it rises when the stream ends, so that the sender notices."""
        self._answered_through = 0
        self._credit_through = 0
        self._num_put = 0
        self._num_settled = 0
        self._num_kept = 0
        self._refused: list[Refused] = []
        """The refusals of which the caller has not heard."""
        self._logged: set[type[RelibraError]] = set()
        self._is_closed = False

    def put(self, sequence: RoutedSequence | CountedSequence, timeout_s: float = 0.0) -> bool:
        """Take a sequence; wait up to `timeout_s` for room, and return False if it does not fit.

        Raises:
            RelibraError: the outbox is closed.
        """
        with self._changed:
            if timeout_s and sequence.size_bytes <= self._limit_size_bytes:
                self._changed.wait_for(lambda: self._is_closed or self._has_room(sequence), timeout_s)
            if self._is_closed:
                raise RelibraError("the reporter is closed")
            if not self._has_room(sequence):
                return False
            self._waiting.append(sequence)
            self._size_bytes += sequence.size_bytes
            self._num_put += 1
            self._changed.notify_all()
            return True

    def _has_room(self, sequence: RoutedSequence | CountedSequence) -> bool:
        return self._size_bytes + sequence.size_bytes <= self._limit_size_bytes

    def wait_for_work(self) -> bool:
        """Wait until there is something to send; return False once the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return not self._is_closed

    def wait_until_closed(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; return whether the outbox is closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, timeout_s)

    def send(self, encode: Callable[[CountedSequence], _Encoded]) -> Iterator[tuple[int, list[_Encoded]]]:
        """Open a stream: yield what its requests hold, until the stream ends or the outbox closes.

        Sequences that wait go together, as many as make a request of `request_size_bytes` or just above.

        Args:
            encode: encodes a sequence; a sequence on which it fails is refused, not sent.

        Yields:
            The ordinal of the first sequence of a request, and all its sequences.
        """
        # Read here and not in the generator: a stream that breaks before its first request must keep its own number.
        with self._changed:
            return self._send(self._stream, encode)

    def _send(self, stream: int, encode: Callable[[CountedSequence], _Encoded]) -> Iterator[tuple[int, list[_Encoded]]]:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stream != stream or (self._credit() > 0 if self._waiting else self._is_closed)
                )
                if self._stream != stream or not self._waiting:
                    return
                ordinal = self._answered_through + len(self._sent) + 1
                sequences = list(islice(self._waiting, self._credit()))
            messages: list[_Encoded] = []
            outcomes: list[CountedSequence | RelibraError] = []
            size_bytes = 0
            for sequence in sequences:
                try:
                    counted = self._count(sequence)
                    messages.append(encode(counted))
                    outcomes.append(counted)
                    size_bytes += counted.size_bytes
                except Exception as error:
                    # A fault in one sequence must not stop the others.
                    reason = f"it cannot be sent: {type(error).__name__}: {error}"
                    outcomes.append(error if isinstance(error, RelibraError) else RelibraError(reason))
                if size_bytes >= self._request_size_bytes:
                    break
            with self._changed:
                if self._stream != stream:
                    return
                for outcome in outcomes:
                    sequence = self._waiting.popleft()
                    self._size_bytes -= sequence.size_bytes
                    if isinstance(outcome, RelibraError):
                        self._settle(sequence, outcome)
                    else:
                        self._sent.append(outcome)
                        self._size_bytes += outcome.size_bytes
            if messages:
                yield ordinal, messages

    def _credit(self) -> int:
        """Return how many sequences may be sent now."""
        return self._credit_through - self._answered_through - len(self._sent)

    def grant(self, credit_through: int) -> None:
        """Let the open stream send up to ordinal `credit_through`."""
        with self._changed:
            self._credit_through = max(self._credit_through, credit_through)
            self._changed.notify_all()

    def answer(self, through: int, refused: Mapping[int, RelibraError]) -> None:
        """Settle all sequences up to ordinal `through`: those in `refused` as refused, the others as kept."""
        with self._changed:
            through = min(through, self._answered_through + len(self._sent))
            for ordinal in range(self._answered_through + 1, through + 1):
                sequence = self._sent.popleft()
                self._size_bytes -= sequence.size_bytes
                self._settle(sequence, refused.get(ordinal))
            self._answered_through = max(self._answered_through, through)

    def end_stream(self) -> None:
        """Put sent but unanswered sequences back to the front, so that the next stream sends them."""
        with self._changed:
            self._waiting.extendleft(reversed(self._sent))
            self._sent.clear()
            self._answered_through = 0
            self._credit_through = 0
            self._stream += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Take no more sequences, and let the stream end when all of them are sent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def settle_all(self, timeout_s: float) -> Settled:
        """Wait up to `timeout_s` until all sequences put before this call are answered; report each answer once."""
        with self._changed:
            target = self._num_put
            self._changed.wait_for(lambda: self._num_settled >= target or self._is_closed, timeout_s)
            settled = Settled(
                num_kept=self._num_kept,
                refused=self._refused,
                num_waiting=max(0, target - self._num_settled),
            )
            self._num_kept, self._refused = 0, []
            return settled

    def take_refused(self, *, but_of_step: int | None = _NO_STEP) -> list[Refused]:
        """Return the refusals that no call has returned yet, except those of one step, which stay for `settle_all`."""
        with self._changed:
            taken = [refused for refused in self._refused if refused.step != but_of_step]
            self._refused = [refused for refused in self._refused if refused.step == but_of_step]
            return taken

    def num_unanswered(self) -> int:
        """Return how many sequences are waiting, or sent and not answered."""
        with self._changed:
            return self._num_put - self._num_settled

    def _settle(self, sequence: RoutedSequence | CountedSequence, error: RelibraError | None) -> None:
        self._num_settled += 1
        if error is None:
            self._num_kept += 1
        else:
            refused = Refused(step=sequence.step, sequence_id=sequence.sequence_id, error=error)
            self._refused.append(refused)
            if type(error) not in self._logged:
                self._logged.add(type(error))
                logger.warning(
                    "sequence %s was refused, so a step that schedules it gets no plan: %s. Further refusals of this "
                    "kind are not logged; flush raises them, as does the next report of another step",
                    refused,
                    error,
                )
        self._changed.notify_all()

    def _count(self, sequence: RoutedSequence | CountedSequence) -> CountedSequence:
        if isinstance(sequence, CountedSequence):
            return sequence
        return CountedSequence(
            step=sequence.step,
            sequence_id=sequence.sequence_id,
            num_rows=len(sequence.routed_TLK),
            counts_LE=narrow_counts(count_routed_experts(sequence.routed_TLK, self._num_experts)),
            policy_versions=sequence.policy_versions,
            epoch=sequence.epoch,
        )
