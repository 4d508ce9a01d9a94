"""Streams of a CUDA device as the symmetric transport uses them, by the driver's API and without torch."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from relibra.agent.transport.symmetric_memory import Push, Put, Queue, Wait, Work
from relibra.kernels import stream_work
from relibra.kernels.context import Context
from relibra.kernels.stream_work import Call, Events, copies_call, submit, words_call

WORD_BYTES = 8
_MOST_UNDER_WAY = 64
"""The most waits to remember, which name late peers: more than a cell and its neighbours queue."""
_MOST_KNOWN = 4096
"""The most calls to remember."""

Waits = deque[tuple[Sequence[Wait], int]]
"""What streams of a rank wait for, and what is added to the values."""


def no_waits() -> Waits:
    """Return an empty queue of the newest waits."""
    return deque(maxlen=_MOST_UNDER_WAY)


def _is_push(work: Work) -> bool:
    return type(work) is Push


class CudaStream:
    """A stream of a rank's device.

    Args:
        of: the context of the device.
        words: the address of every rank's first word.
        rank: this rank.
        handle: returns the driver's handle of the stream, which changes with the current stream.
        waits: the stream notes its own here.
    """

    def __init__(self, of: Context, words: Sequence[int], rank: int, handle: Callable[[], int], waits: Waits) -> None:
        self._context, self._words, self._rank, self._handle, self._waits = of, words, rank, handle, waits
        self._known = dict[tuple[Put | Wait, ...], Call]()

    def prepare(self, work: Sequence[Work]) -> Queue:
        """See `symmetric_memory.Stream`."""
        calls = [
            copies_call(self._context, list(group)) if is_push else self._words_call(tuple(group))  # type: ignore[arg-type]
            for is_push, group in groupby(work, _is_push)
        ]
        waits = [each for each in work if isinstance(each, Wait)]

        def note_and_queue(base: int) -> None:
            if waits:
                self._waits.append((waits, base))
            submit(self._context, calls, self._handle(), base)

        return note_and_queue

    def _words_call(self, words: tuple[Put | Wait, ...]) -> Call:
        """Return the call for some words; transfers between the same ranks share it."""
        if words not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[words] = words_call(self._context, [self._addressed(each) for each in words])
        return self._known[words]

    def _addressed(self, word: Put | Wait) -> stream_work.Wait | stream_work.Write:
        if isinstance(word, Put):
            return stream_work.Write(self._word(word.peer, word.word), word.value)
        return stream_work.Wait(self._word(self._rank, word.word), word.value)

    def _word(self, rank: int, word: int) -> int:
        return self._words[rank] + WORD_BYTES * word


class WatchedStream(CudaStream):
    """The stream of the training, which in the end waits for peers, and for pushes that wait for peers.

    Args:
        of: see `CudaStream`, also for the next three.
        words: the address of every rank's first word.
        rank: this rank.
        handle: returns the driver's handle of the stream.
        waits: those of all streams of the rank, since this stream waits for the others.
        read_words: returns the words of this rank. It makes the device read them.
    """

    def __init__(
        self,
        of: Context,
        words: Sequence[int],
        rank: int,
        handle: Callable[[], int],
        waits: Waits,
        read_words: Callable[[], Sequence[int]],
    ) -> None:
        super().__init__(of, words, rank, handle, waits)
        self._read_words, self._events = read_words, Events(self._context)

    def prepare(self, work: Sequence[Work]) -> Queue:
        """See `symmetric_memory.Stream`."""
        queue = super().prepare(work)
        if not any(isinstance(each, Wait) for each in work):
            return queue

        def queue_and_mark(base: int) -> None:
            queue(base)
            self._events.record(self._handle())

        return queue_and_mark

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
