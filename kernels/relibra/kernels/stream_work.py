"""Work that a stream does without a kernel, so that no multiprocessor is busy: copies, and words that streams exchange.

The driver takes any number of words in one call, and from CUDA 12.8 on any number of copies.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_size_t, c_void_p
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch

from relibra.kernels.context import Context, context, library


class Wait(NamedTuple):
    """All later work of the stream waits until a word has reached a value."""

    address: int
    """The address of an aligned word of 64 bits, in memory of the stream's device."""
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
"""CU_STREAM_NON_BLOCKING: the stream and the default stream do not wait for each other."""
_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL."""


Call = Callable[[c_void_p, int], None]
"""Queues something on the stream of a handle. The number is added to the values of words.

Raises:
    RelibraError: the driver refused.
"""


def words_call(of: Context, words: Sequence[Wait | Write]) -> Call:
    """Return a call of the driver that waits for words and writes words, in this order."""
    table, batch, num = (ctypes.c_uint64 * (_SIZE * len(words)))(), of.lib.cuStreamBatchMemOp_v2, len(words)
    for i, word in enumerate(words):
        table[_SIZE * i + _KIND] = _WAIT_64 if isinstance(word, Wait) else _WRITE_64
        table[_SIZE * i + _ADDRESS] = word.address
    values = [(_SIZE * i + _VALUE, word.value) for i, word in enumerate(words)]

    def call(stream: c_void_p, base: int) -> None:
        for place, value in values:
            table[place] = value + base
        if status := batch(stream, num, table, 0):
            of.check("cuStreamBatchMemOp", status)

    return call


def copies_call(of: Context, copies: Sequence[tuple[int, int, int]]) -> Call:
    """Return a call that queues some copies: one of the driver, where it has batches and there are several.

    Args:
        of: the context of the stream's device.
        copies: as in `Copy`.
    """
    num = len(copies)
    if num == 1 or not hasattr(of.lib, "cuMemcpyBatchAsync"):
        one_by_one = [(c_void_p(into), c_void_p(source), c_size_t(size_bytes)) for into, source, size_bytes in copies]

        def call_each(stream: c_void_p, _: int) -> None:
            for arguments in one_by_one:
                if status := of.lib.cuMemcpyAsync(*arguments, stream):
                    of.check("cuMemcpyAsync", status)

        return call_each
    columns = (ctypes.c_uint64 * (3 * num))(*chain.from_iterable(zip(*copies, strict=True)))
    column_bytes = 8 * num
    arguments = *(byref(columns, i * column_bytes) for i in range(3)), c_size_t(num), *_attributes(), byref(c_size_t())

    def call(stream: c_void_p, _: int) -> None:
        if status := of.lib.cuMemcpyBatchAsync(*arguments, stream):
            of.check("cuMemcpyBatchAsync", status)

    return call


@cache
def _attributes() -> tuple[Any, ...]:
    """Return the attributes of all copies, the first copy that has them, and how many attributes there are."""
    return byref((ctypes.c_uint32 * 6)(_IN_STREAM_ORDER)), byref(c_size_t()), c_size_t(1)


def submit(of: Context, calls: Sequence[Call], stream: int, base: int) -> None:
    """Make some calls in their order, for the stream of a handle."""
    handle = c_void_p(stream)

    def run() -> None:
        for call in calls:
            call(handle, base)

    of.within(run)


class Events:
    """The last point of a stream, about which somebody asks now and then.

    There are two events: the one that `take` returned last stays unchanged while `record` uses the other one.
    """

    def __init__(self, of: Context) -> None:
        self._context, self._handles = of, [c_void_p(), c_void_p()]
        of.within(self._create)

    def _create(self) -> None:
        for handle in self._handles:
            self._context.check("cuEventCreate", self._context.lib.cuEventCreate(byref(handle), _NO_TIMING))

    def record(self, stream: int) -> None:
        """Make the present end of a stream its last point."""
        self._context.within(
            lambda: self._context.check(
                "cuEventRecord", self._context.lib.cuEventRecord(self._handles[0], c_void_p(stream))
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
    of, handle = context(device.index), c_void_p()
    of.within(
        lambda: of.check("cuStreamCreate", of.lib.cuStreamCreate(byref(handle), _NON_BLOCKING)),
    )
    return torch.cuda.ExternalStream(handle.value, device)  # type: ignore[no-untyped-call]


def allow_beside_captures() -> None:
    """Let this thread call the driver while other threads capture graphs, as NCCL's watchdog does.

    A query of an event would otherwise fail, and end the capture of the other thread.
    """
    library().cuThreadExchangeStreamCaptureMode(byref(ctypes.c_int(_THREAD_LOCAL)))
