"""Streams that nobody else uses, and that wait for a value in memory without a kernel, so no multiprocessor is busy."""

import ctypes
import threading
from functools import cache

import torch

from relibra.errors import RelibraError

_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ, which compares modulo 2^32."""

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: the default stream has no regard to it."""
_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL."""
_thread = threading.local()


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def own_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a new stream, which stays until the process ends.

    A stream that torch makes is one of a pool, so code that knows nothing of the agent may get the same one, and its
    work would then wait for peers.

    Raises:
        RelibraError: the driver refused.
    """
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        _have_context(torch.cuda.current_stream(device))
        _check("cuStreamCreate", device, _driver().cuStreamCreate(ctypes.byref(handle), _NON_BLOCKING))
    return torch.cuda.ExternalStream(handle.value, device)  # type: ignore[no-untyped-call]


def wait_until_at_least(stream: torch.cuda.Stream, address: int, value: int) -> None:
    """Make all later work of a stream wait until the word at `address` has reached `value`, modulo 2^32.

    Torch can write a word from a stream, but not wait for one.

    Args:
        stream: the stream, also the default one.
        address: an aligned word of 32 bits in memory of the stream's device.
        value: from 0 to 2^32 - 1.

    Raises:
        RelibraError: the driver refused.
    """
    arguments = ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(address), ctypes.c_uint32(value)
    with torch.cuda.device(stream.device):
        _have_context(stream)
        _check("cuStreamWaitValue32", stream.device, _driver().cuStreamWaitValue32_v2(*arguments, _AT_LEAST))


def _check(call: str, device: torch.device, status: int) -> None:
    if status:
        raise RelibraError(f"{call} on {device}: CUDA error {status}")


def _have_context(stream: torch.cuda.Stream) -> None:
    """Call the runtime, once in every thread: it sets the context in which the driver looks for the default stream."""
    if not hasattr(_thread, "has_context"):
        stream.record_event()
        _thread.has_context = True


def allow_beside_captures() -> None:
    """Let this thread call the driver while other threads capture graphs, as NCCL's watchdog does.

    A query of an event would otherwise fail, and end the capture of the other thread.

    Raises:
        RelibraError: the driver refused.
    """
    mode = ctypes.c_int(_THREAD_LOCAL)
    if status := _driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)):
        raise RelibraError(f"cuThreadExchangeStreamCaptureMode: CUDA error {status}")
