"""What a reporter was handed and the planner has not answered yet: bounded, thread-safe, free of gRPC.

T rows, L layers, K top-k, E experts.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from relibra.errors import RelibraError
from relibra.routing.counts import count_routed_experts, narrow_counts

_Request = TypeVar("_Request")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedSequence:
    """A sequence as it was handed over."""

    step: int
    sequence_id: str
    routed_TLK: NDArray[np.integer]
    policy_versions: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        return self.routed_TLK.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSequence:
    """A sequence as it is sent."""

    step: int
    sequence_id: str
    num_rows: int
    counts_LE: NDArray[np.unsignedinteger]
    """In the narrowest dtype, see `narrow_counts`."""
    policy_versions: tuple[int, int] | None

    @property
    def size_bytes(self) -> int:
        """Memory it holds."""
        return self.counts_LE.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A sequence that was not kept, and why."""

    step: int
    sequence_id: str
    error: RelibraError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What has been answered since the last time somebody asked."""

    num_kept: int
    refused: list[Refused]
    num_waiting: int
    """Handed over before the question and still not answered."""


class Outbox:
    """A queue with a window: sequences go from waiting to sent, and out when they are answered.

    One stream is open at a time, and sends no further than the planner gave it credit for. Answers come in the order of
    sending; when a stream ends, what it sent without an answer goes back to the front. Sequences are counted and
    encoded when they are sent, in the thread that sends.
    """

    def __init__(self, *, num_experts: int, limit_size_bytes: int) -> None:
        self._num_experts = num_experts
        self._limit_size_bytes = limit_size_bytes
        self._changed = threading.Condition()
        self._waiting: deque[RoutedSequence | CountedSequence] = deque()
        self._sent: deque[CountedSequence] = deque()
        self._size_bytes = 0
        self._stream = 0
        """Number of the open stream; rises when it ends, so that its sender notices."""
        self._answered_through = 0
        self._credit_through = 0
        self._num_put = 0
        self._num_settled = 0
        self._num_kept = 0
        self._refused: list[Refused] = []
        self._is_closed = False

    def put(self, sequence: RoutedSequence) -> bool:
        """Take a sequence, or return False where it does not fit."""
        with self._changed:
            if self._is_closed:
                raise RelibraError("the reporter is closed")
            if self._size_bytes + sequence.size_bytes > self._limit_size_bytes:
                return False
            self._waiting.append(sequence)
            self._size_bytes += sequence.size_bytes
            self._num_put += 1
            self._changed.notify_all()
            return True

    def wait_for_work(self) -> bool:
        """Wait until there is something to send; return False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            return not self._is_closed

    def wait_until_closed(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s`; return whether the outbox is closed."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, timeout_s)

    def send(self, encode: Callable[[int, CountedSequence], _Request]) -> Iterator[_Request]:
        """Open a stream: yield requests as sequences come, until the stream ends or the outbox closes.

        Args:
            encode: makes the request of an ordinal and a sequence; one on which it fails is refused, and not sent.
        """
        # Not part of the generator: a stream that broke before its first request must not take its successor's number.
        with self._changed:
            return self._send(self._stream, encode)

    def _send(self, stream: int, encode: Callable[[int, CountedSequence], _Request]) -> Iterator[_Request]:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stream != stream or (self._may_send() if self._waiting else self._is_closed)
                )
                if self._stream != stream or not self._waiting:
                    return
                sequence = self._waiting[0]
                ordinal = self._answered_through + len(self._sent) + 1
            try:
                counted = self._count(sequence)
                request = encode(ordinal, counted)
                refusal = None
            except RelibraError as error:
                refusal = error
            except Exception as error:
                # Whatever is wrong with one sequence, the others go on.
                refusal = RelibraError(f"it cannot be sent: {type(error).__name__}: {error}")
            with self._changed:
                if self._stream != stream:
                    return
                self._waiting.popleft()
                self._size_bytes -= sequence.size_bytes
                if refusal is not None:
                    self._settle(sequence, refusal)
                    continue
                self._sent.append(counted)
                self._size_bytes += counted.size_bytes
            yield request

    def _may_send(self) -> bool:
        return self._answered_through + len(self._sent) < self._credit_through

    def grant(self, credit_through: int) -> None:
        """Let the open stream send up to ordinal `credit_through`."""
        with self._changed:
            self._credit_through = max(self._credit_through, credit_through)
            self._changed.notify_all()

    def answer(self, through: int, refused: Mapping[int, RelibraError]) -> None:
        """Settle everything sent up to ordinal `through`, the `refused` ordinals as such."""
        with self._changed:
            through = min(through, self._answered_through + len(self._sent))
            for ordinal in range(self._answered_through + 1, through + 1):
                sequence = self._sent.popleft()
                self._size_bytes -= sequence.size_bytes
                self._settle(sequence, refused.get(ordinal))
            self._answered_through = max(self._answered_through, through)

    def end_stream(self) -> None:
        """Put what was sent and not answered back in front, to go out on the next stream."""
        with self._changed:
            self._waiting.extendleft(reversed(self._sent))
            self._sent.clear()
            self._answered_through = 0
            self._credit_through = 0
            self._stream += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more, and let the stream end when everything is sent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def settle_all(self, timeout_s: float) -> Settled:
        """Wait until all that was put before this call is answered, or `timeout_s`; each answer is told once."""
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

    def num_unanswered(self) -> int:
        """Return how many sequences are waiting or sent."""
        with self._changed:
            return self._num_put - self._num_settled

    def _settle(self, sequence: RoutedSequence | CountedSequence, error: RelibraError | None) -> None:
        self._num_settled += 1
        if error is None:
            self._num_kept += 1
        else:
            self._refused.append(Refused(step=sequence.step, sequence_id=sequence.sequence_id, error=error))
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
        )
