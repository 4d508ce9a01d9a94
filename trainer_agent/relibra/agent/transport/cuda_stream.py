"""Streams of a CUDA device as the symmetric transport uses them, by the driver's API and without torch."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from relibra.agent.transport.symmetric_memory import Push, Put, Queue, Wait, Work
from relibra.kernels import stream_work
from relibra.kernels.context import Context
from relibra.kernels.stream_work import Events, Submission

WORD_BYTES = 8
_MOST_UNDER_WAY = 64
"""Waits that are remembered, to name the peers that are late: more than a cell and its neighbours queue."""


class CudaStream:
    """A stream of a rank's device.

    Args:
        of: the context of the device.
        words: the address of every rank's first word.
        rank: this rank.
        handle: returns the driver's handle of the stream, which is another one whenever the current stream is.
    """

    def __init__(self, of: Context, words: Sequence[int], rank: int, handle: Callable[[], int]) -> None:
        self._context, self._words, self._rank, self._handle = of, words, rank, handle

    def prepare(self, work: Sequence[Work]) -> Queue:
        """See `symmetric_memory.Stream`."""
        if not work:
            return lambda _: None
        submission = Submission(self._context, [self._addressed(each) for each in work])
        return lambda base: submission.queue(self._handle(), base)

    def _addressed(self, work: Work) -> stream_work.Work:
        if isinstance(work, Push):
            return stream_work.Copy(*work)
        if isinstance(work, Put):
            return stream_work.Write(self._word(work.peer, work.word), work.value)
        return stream_work.Wait(self._word(self._rank, work.word), work.value)

    def _word(self, rank: int, word: int) -> int:
        return self._words[rank] + WORD_BYTES * word


class WatchedStream(CudaStream):
    """The stream of the training, which in the end waits for everything: for peers, and for pushes that do.

    Args:
        of: see `CudaStream`, as the following ones.
        words: the address of every rank's first word.
        rank: this rank.
        handle: returns the driver's handle of the stream.
        read_words: returns the words of this rank. It makes the device read them.
    """

    def __init__(
        self,
        of: Context,
        words: Sequence[int],
        rank: int,
        handle: Callable[[], int],
        read_words: Callable[[], Sequence[int]],
    ) -> None:
        super().__init__(of, words, rank, handle)
        self._read_words, self._events = read_words, Events(self._context)
        self._waits = deque[tuple[Sequence[Wait], int]](maxlen=_MOST_UNDER_WAY)

    def prepare(self, work: Sequence[Work]) -> Queue:
        """See `symmetric_memory.Stream`."""
        queue, waits = super().prepare(work), [each for each in work if isinstance(each, Wait)]
        if not waits:
            return queue

        def queue_and_note(base: int) -> None:
            self._waits.append((waits, base))
            queue(base)
            self._events.record(self._handle())

        return queue_and_note

    def take_mark(self) -> "_CudaMark | None":
        """See `WatchedStream` of `watch`."""
        if not self._waits:
            return None
        return _CudaMark(self._events.take(), self._read_words, tuple(self._waits), self._rank)


class _CudaMark(NamedTuple):
    is_over: Callable[[], bool]
    read_words: Callable[[], Sequence[int]]
    waits: Sequence[tuple[Sequence[Wait], int]]
    rank: int

    def late_peers(self) -> list[int]:
        words = self.read_words()
        num_ranks = len(words) // 2
        late = {
            wait.word % num_ranks
            for waits, base in self.waits
            for wait in waits
            if words[wait.word] < wait.value + base
        }
        return sorted(late - {self.rank})
