"""Symmetric memory without a GPU: memory that processes share, threads for side streams, and polling for signals.

The current stream is the calling thread, so a wait blocks it, as gloo does. Signals come in order with the bytes before
them where the processor keeps the order of stores, as x86 does.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import memmove
from functools import partial
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from relibra.agent.transport import SymmetricTransport, choice
from relibra.agent.transport.cuda_memory import CudaMemory
from relibra.agent.transport.cuda_stream import WORD_BYTES
from relibra.agent.transport.lost_ranks import missing
from relibra.agent.transport.shared_memory import shared_blocks
from relibra.agent.transport.symmetric_memory import Push, Put, Queue, SymmetricMemory, Work

_POLL_S = 2e-4


class EmulatedMemory:
    """See `SymmetricMemory`, and `CudaMemory` for the arguments."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self._group, self._timeout_s = group, timeout_s
        self.failures = list[Exception]()
        self._words = [block.numpy().view(np.int64) for block in self.allocate(WORD_BYTES * 2 * self.num_ranks)]

    def allocate(self, size_bytes: int) -> Sequence[Tensor]:
        return [block[:size_bytes] for block in shared_blocks(size_bytes, self._group)]

    def current_stream(self) -> "CallingThread":
        return CallingThread(self)

    def side_stream(self) -> "EmulatedStream":
        return EmulatedStream(self)

    def do(self, work: Work, base: int) -> None:
        """Do some work in the calling thread."""
        if isinstance(work, Push):
            with record_function("relibra::move"):
                memmove(*work)
        elif isinstance(work, Put):
            self._words[work.peer][work.word] = work.value + base
        else:
            self._wait(work.word, work.value + base)

    def _wait(self, word: int, value: int) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        is_own = word % self.num_ranks == self.rank  # the other stream ends, or gives up by itself
        while not self.has_come(word, value):
            if is_own and self.failures:
                raise self.failures[0]
            if not is_own and time.monotonic() > deadline_s:
                raise missing([word % self.num_ranks], f"no signal came for {self._timeout_s} s")
            time.sleep(_POLL_S)

    def has_come(self, word: int, value: int) -> bool:
        """Return whether a word of this rank has reached `value`."""
        return bool(self._words[self.rank][word] >= value)


class CallingThread:
    """The current stream: all of its work is over when it is queued."""

    def __init__(self, memory: EmulatedMemory) -> None:
        self._memory = memory

    def prepare(self, work: Sequence[Work]) -> Queue:
        def run(base: int) -> None:
            for each in work:
                self._memory.do(each, base)

        run.work = work  # type: ignore[attr-defined]  # for tests that ask what a transfer waits for
        return run


class EmulatedStream:
    """A thread that does the queued work in order, until some of it fails."""

    def __init__(self, memory: EmulatedMemory) -> None:
        self._queue = queue.SimpleQueue[Callable[[], None] | None]()
        self._memory = memory
        threading.Thread(target=_run, args=(self._queue, memory.failures), daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def prepare(self, work: Sequence[Work]) -> Queue:
        def queue_all(base: int) -> None:
            for each in work:
                self._queue.put(partial(self._memory.do, each, base))

        return queue_all


def _run(work: queue.SimpleQueue[Callable[[], None] | None], failures: list[Exception]) -> None:
    while (each := work.get()) is not None and not failures:
        try:
            each()
        except Exception as error:
            failures.append(error)


def emulated_transport(group: dist.ProcessGroup, timeout_s: float) -> SymmetricTransport:
    """Collective: return a transport between processes of one machine."""
    return SymmetricTransport(EmulatedMemory(group, torch.device("cpu"), timeout_s))


@contextmanager
def emulated() -> Iterator[None]:
    """Let agents that attach have symmetric memory on a CPU, too."""

    def memory(group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> SymmetricMemory:
        kind = CudaMemory if device.type == "cuda" else EmulatedMemory
        return kind(group, device, timeout_s)

    with mock.patch.object(choice, "CudaMemory", memory):
        yield
