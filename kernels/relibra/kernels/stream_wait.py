"""Streams that wait for a value in memory without a kernel, so that no multiprocessor is busy meanwhile."""

import ctypes
from functools import cache

import torch

from relibra.errors import RelibraError

_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ, which compares modulo 2^32."""


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def wait_until_at_least(stream: torch.cuda.Stream, address: int, value: int) -> None:
    """Make all later work of a stream wait until the word at `address` has reached `value`, modulo 2^32.

    Torch can write a word from a stream, but not wait for one.

    Args:
        stream: not the default stream, which the driver would look for in the calling thread's context.
        address: an aligned word of 32 bits in memory of the stream's device.
        value: from 0 to 2^32 - 1.

    Raises:
        RelibraError: the driver refused.
    """
    arguments = ctypes.c_void_p(stream.cuda_stream), ctypes.c_uint64(address), ctypes.c_uint32(value)
    status = _driver().cuStreamWaitValue32_v2(*arguments, _AT_LEAST)
    if status:
        raise RelibraError(f"cuStreamWaitValue32 on {stream.device}: CUDA error {status}")
