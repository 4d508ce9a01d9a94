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
from functools import partial
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from relibra.agent.transport import SymmetricTransport, choice
from relibra.agent.transport.cuda_memory import CudaMemory
from relibra.agent.transport.lost_ranks import missing
from relibra.agent.transport.shared_memory import shared_blocks
from relibra.agent.transport.symmetric_memory import SymmetricMemory

_POLL_S = 2e-4


class EmulatedMemory:
    """See `SymmetricMemory`, and `CudaMemory` for the arguments."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self.rank, self.num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self._group, self._timeout_s = group, timeout_s
        self._words = [block.numpy().view(np.uint32) for block in self.allocate(8 * self.num_ranks)]

    def allocate(self, size_bytes: int) -> Sequence[Tensor]:
        return [block[:size_bytes] for block in shared_blocks(size_bytes, self._group)]

    def put_signal(self, peer: int, word: int, value: int) -> None:
        self._words[peer][word] = value

    def current_stream(self) -> "CallingThread":
        return CallingThread(self)

    def side_stream(self) -> "EmulatedStream":
        return EmulatedStream(self)

    def wait_signal(self, word: int, value: int) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        while not self.has_come(word, value):
            if time.monotonic() > deadline_s:
                raise missing([word % self.num_ranks], f"no signal came for {self._timeout_s} s")
            time.sleep(_POLL_S)

    def has_come(self, word: int, value: int) -> bool:
        """Return whether a word of this rank has reached `value`."""
        return (int(self._words[self.rank][word]) - value) % 2**32 < 2**31


class CallingThread:
    """The current stream: all of its work is over when a method returns."""

    def __init__(self, memory: EmulatedMemory) -> None:
        self.put_signal, self.wait_signal = memory.put_signal, memory.wait_signal

    def mark(self) -> None:
        """Nothing: nobody waits for a point that the thread has passed."""


class EmulatedStream:
    """A thread that does the queued work in order, until some of it fails."""

    def __init__(self, memory: EmulatedMemory) -> None:
        self._memory, self._work = memory, queue.SimpleQueue[Callable[[], object] | None]()
        self._failures = list[Exception]()
        threading.Thread(target=_run, args=(self._work, self._failures), daemon=True).start()
        weakref.finalize(self, self._work.put, None)

    def follow(self) -> None:
        """Nothing: the work of the calling thread is over when it calls."""

    def copy(self, into: Tensor, source: Tensor) -> None:
        def copied() -> None:
            with record_function("relibra::move"):
                into.copy_(source)

        self._work.put(copied)

    def put_signal(self, peer: int, word: int, value: int) -> None:
        self._work.put(partial(self._memory.put_signal, peer, word, value))

    def wait_signal(self, word: int, value: int) -> None:
        self._work.put(partial(self._memory.wait_signal, word, value))

    def mark(self) -> "EmulatedMark":
        mark = EmulatedMark(self._failures)
        self._work.put(mark)
        return mark


class EmulatedMark:
    """A point that its stream has passed once `is_over` is set."""

    def __init__(self, failures: list[Exception]) -> None:
        self.is_over, self._failures, self._failure = threading.Event(), failures, None

    def __call__(self) -> None:
        """Pass the point."""
        self._failure = next(iter(self._failures), None)
        self.is_over.set()

    def wait(self) -> None:
        self.is_over.wait()
        if self._failure is not None:
            raise self._failure


def _run(work: queue.SimpleQueue[Callable[[], object] | None], failures: list[Exception]) -> None:
    while (each := work.get()) is not None:
        if isinstance(each, EmulatedMark) or not failures:
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
