"""Work that a stream does without a kernel, so that no multiprocessor is busy: copies, and words that streams exchange.

The driver takes any number of words in one call, and from CUDA 12.8 on any number of copies.
"""

import ctypes
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import torch

from relibra.kernels.context import Context, context, library


class Wait(NamedTuple):
    """All later work of the stream waits until a word has reached a value."""

    address: int
    """Of an aligned word of 64 bits, in memory of the stream's device."""
    value: int


class Write(NamedTuple):
    """Write a word when all earlier work of the stream is over and visible, also to other devices."""

    address: int
    value: int


class Copy(NamedTuple):
    """Copy bytes. Copies that follow one another may run in any order."""

    into: int
    source: int
    size_bytes: int


Work = Wait | Write | Copy

_WAIT_64, _WRITE_64 = 4, 5
"""CU_STREAM_MEM_OP_WAIT_VALUE_64, for CU_STREAM_WAIT_VALUE_GEQ, and CU_STREAM_MEM_OP_WRITE_VALUE_64."""
_KIND, _ADDRESS, _VALUE, _SIZE = 0, 1, 2, 6
"""CUstreamBatchMemOpParams in 64 bits each. The flags are 0."""
_IN_STREAM_ORDER = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, the first field of CUmemcpyAttributes; the others are 0."""
_NO_TIMING, _NOT_READY = 2, 600
"""CU_EVENT_DISABLE_TIMING and CUDA_ERROR_NOT_READY."""
_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the default stream has no regard to it."""
_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL."""


_Call = tuple[str, Callable[[ctypes.c_void_p], int]]
"""A name and a call of the driver, which gets the handle of the stream and returns a status."""


class Submission:
    """Work in its order, ready for the driver, to be queued any number of times.

    Args:
        of: the context of the stream's device.
        work: what to do.
    """

    def __init__(self, of: Context, work: Sequence[Work]) -> None:
        self._context = of
        words = [each for each in work if not isinstance(each, Copy)]
        self._table = (ctypes.c_uint64 * (_SIZE * len(words)))()
        for i, each in enumerate(words):
            self._table[_SIZE * i + _KIND] = _WAIT_64 if isinstance(each, Wait) else _WRITE_64
            self._table[_SIZE * i + _ADDRESS] = each.address
        self._values = [(_SIZE * i + _VALUE, each.value) for i, each in enumerate(words)]
        self._calls, begin = list[_Call](), 0
        for are_copies, group in groupby(work, key=lambda each: isinstance(each, Copy)):
            some = list(group)
            if are_copies:
                self._calls += _copies(of.lib, some)  # type: ignore[arg-type]
            else:
                self._calls.append(self._words(begin, len(some)))
                begin += len(some)

    def queue(self, stream: int, base: int) -> None:
        """Queue the work.

        Args:
            stream: the driver's handle.
            base: is added to all values.

        Raises:
            RelibraError: the driver refused.
        """
        table = self._table
        for place, value in self._values:
            table[place] = value + base

        def run() -> None:
            handle = ctypes.c_void_p(stream)
            for name, call in self._calls:
                if status := call(handle):
                    self._context.check(name, status)

        self._context.within(run)

    def _words(self, begin: int, num: int) -> _Call:
        batch, table = self._context.lib.cuStreamBatchMemOp_v2, self._table
        first = ctypes.byref(table, ctypes.sizeof(ctypes.c_uint64) * _SIZE * begin)
        return "cuStreamBatchMemOp", lambda stream: batch(stream, num, first, 0)


def _copies(lib: ctypes.CDLL, copies: Sequence[Copy]) -> list[_Call]:
    """Return the calls that queue some copies: one, where the driver has batches and there are several."""
    if len(copies) == 1 or not hasattr(lib, "cuMemcpyBatchAsync"):
        return [_copy(lib, copy) for copy in copies]
    num, one, batch = len(copies), ctypes.c_size_t(1), lib.cuMemcpyBatchAsync
    into, source, size_bytes = ((ctypes.c_uint64 * num)(*column) for column in zip(*copies, strict=True))
    attributes, first, failed = (ctypes.c_uint32 * 6)(_IN_STREAM_ORDER), ctypes.c_size_t(), ctypes.c_size_t()
    more = ctypes.c_size_t(num), ctypes.byref(attributes), ctypes.byref(first), one, ctypes.byref(failed)
    return [("cuMemcpyBatchAsync", lambda stream: batch(into, source, size_bytes, *more, stream))]


def _copy(lib: ctypes.CDLL, copy: Copy) -> _Call:
    arguments = ctypes.c_void_p(copy.into), ctypes.c_void_p(copy.source), ctypes.c_size_t(copy.size_bytes)
    return "cuMemcpyAsync", lambda stream: lib.cuMemcpyAsync(*arguments, stream)


class Events:
    """The last point of a stream that somebody asks about now and then.

    There are two events: what was asked about last stays as it is while the stream goes on with the other one.
    """

    def __init__(self, of: Context) -> None:
        self._context, self._handles = of, [ctypes.c_void_p(), ctypes.c_void_p()]
        of.within(self._create)

    def _create(self) -> None:
        for handle in self._handles:
            self._context.check("cuEventCreate", self._context.lib.cuEventCreate(ctypes.byref(handle), _NO_TIMING))

    def record(self, stream: int) -> None:
        """Make the present end of a stream its last point."""
        self._context.within(
            lambda: self._context.check(
                "cuEventRecord", self._context.lib.cuEventRecord(self._handles[0], ctypes.c_void_p(stream))
            )
        )

    def take(self) -> Callable[[], bool]:
        """Return a function that says whether the device has passed the last point, good until the next `take`."""
        taken = self._handles[0]
        self._handles.reverse()

        def is_over() -> bool:
            status: int = self._context.lib.cuEventQuery(taken)
            self._context.check("cuEventQuery", status * (status != _NOT_READY))
            return not status

        return is_over


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a new stream, which stays until the process ends.

    A stream that torch makes is one of a pool, so code that knows nothing of the agent may get the same one, and its
    work would then wait for peers.

    Raises:
        RelibraError: the driver refused.
    """
    of, handle = context(device.index), ctypes.c_void_p()
    of.within(
        lambda: of.check("cuStreamCreate", of.lib.cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING)),
    )
    return torch.cuda.ExternalStream(handle.value, device)  # type: ignore[no-untyped-call]


def allow_beside_captures() -> None:
    """Let this thread call the driver while other threads capture graphs, as NCCL's watchdog does.

    A query of an event would otherwise fail, and end the capture of the other thread.
    """
    library().cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_THREAD_LOCAL)))
