"""Measure what calls of the CUDA driver cost the host, one by one and in batches.

    python -m benchmarks.gpu.calls --figures FILE

A transport writes and waits for words, and copies bytes. `call_us` has the host time of a call, and `each_us` that of
one operation in it. The figures are written after every call, so that a run that is cut off leaves what it has found.
"""

import argparse
import ctypes
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.timing import host_us
from relibra.atomic_file import write_atomically

_WRITE_32, _WAIT_32 = 2, 1
"""CU_STREAM_MEM_OP_WRITE_VALUE_32 and CU_STREAM_MEM_OP_WAIT_VALUE_32. The words are 0, so waits for 0 are over."""
_FIELDS = 6
"""CUstreamBatchMemOpParams in 64 bits each: kind, address, value, and flags, which are 0."""
_IN_STREAM_ORDER = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, the first field of CUmemcpyAttributes; the others are 0."""
_BATCHES = (2, 8, 32)
_COPY_BYTES = 1 << 16


class Call(NamedTuple):
    """A call of the driver."""

    name: str
    num_operations: int
    run: Callable[[], int]
    """Returns the driver's status."""


def calls(lib: ctypes.CDLL, stream: int, words: int, source: int, into: int, events: Sequence[int]) -> Iterator[Call]:
    """Yield all calls that are measured.

    Args:
        lib: the driver.
        stream: a stream that nothing else uses.
        words: the address of as many words of 32 bits as the largest batch has.
        source: the address of as many parts of `_COPY_BYTES`.
        into: as many more.
        events: a recorded event, and one to record.
    """
    handle, word, zero = ctypes.c_void_p(stream), ctypes.c_uint64(words), ctypes.c_uint32(0)
    to, of, size_bytes = ctypes.c_uint64(into), ctypes.c_uint64(source), ctypes.c_size_t(_COPY_BYTES)
    recorded, other = map(ctypes.c_void_p, events)
    yield Call("write a word", 1, lambda: lib.cuStreamWriteValue32_v2(handle, word, zero, 0))
    yield Call("wait for a word", 1, lambda: lib.cuStreamWaitValue32_v2(handle, word, zero, 0))
    yield Call("copy", 1, lambda: lib.cuMemcpyAsync(to, of, size_bytes, handle))
    yield Call("record an event", 1, lambda: lib.cuEventRecord(other, handle))
    yield Call("wait for an event", 1, lambda: lib.cuStreamWaitEvent(handle, recorded, 0))
    for num in _BATCHES:
        yield _words(lib, handle, words, num)
    if hasattr(lib, "cuMemcpyBatchAsync"):  # from CUDA 12.8 on
        for num in _BATCHES:
            yield _copies(lib, handle, source, into, num)


def _words(lib: ctypes.CDLL, handle: ctypes.c_void_p, words: int, num: int) -> Call:
    table = (ctypes.c_uint64 * (_FIELDS * num))()
    for i in range(num):
        table[_FIELDS * i : _FIELDS * i + 2] = [_WAIT_32 if i % 2 else _WRITE_32, words + 4 * i]
    return Call("write and wait for words", num, lambda: lib.cuStreamBatchMemOp_v2(handle, num, table, 0))


def _copies(lib: ctypes.CDLL, handle: ctypes.c_void_p, source: int, into: int, num: int) -> Call:
    places = [[begin + _COPY_BYTES * i for i in range(num)] for begin in (into, source)]
    to, of = ((ctypes.c_uint64 * num)(*place) for place in places)
    sizes = (ctypes.c_size_t * num)(*[_COPY_BYTES] * num)
    attributes, first, failed = (ctypes.c_uint32 * 6)(_IN_STREAM_ORDER), ctypes.c_size_t(), ctypes.c_size_t()
    more = ctypes.c_size_t(num), attributes, ctypes.byref(first), ctypes.c_size_t(1), ctypes.byref(failed), handle
    return Call("copies", num, lambda: lib.cuMemcpyBatchAsync(to, of, sizes, *more))


def measure(some: Iterator[Call], time_us: Callable[[Callable[[], object]], float], file: Path) -> dict[str, Any]:
    """Time calls; write the figures after each one."""
    figures: dict[str, Any] = {"calls": [], "failures": []}
    for call in some:
        if status := call.run():
            figures["failures"].append(f"{call.name}, {call.num_operations} at once: CUDA error {status}")
        else:
            call_us = time_us(call.run)
            row = {"call": call.name, "num_operations": call.num_operations, "call_us": call_us}
            figures["calls"].append(row | {"each_us": call_us / call.num_operations})
        figures["says"] = list(says(figures))
        write_atomically(file, json.dumps(figures).encode())
    return figures


def says(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures in a line for each call."""
    for each in figures["calls"]:
        yield "{call}, {num_operations} at once: {call_us:.2f} us of host a call, {each_us:.2f} each".format(**each)
    yield from (f"FAILED {each}" for each in figures["failures"])


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, required=True, help="where to write the figures, as JSON")
    file = parser.parse_args().figures
    words = torch.zeros(max(_BATCHES), dtype=torch.int32, device="cuda")
    source, into = (torch.zeros(max(_BATCHES) * _COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    stream, events = torch.cuda.Stream(), [torch.cuda.Event(), torch.cuda.Event()]
    for event in events:
        event.record(stream)
    torch.cuda.synchronize()
    addresses = words.data_ptr(), source.data_ptr(), into.data_ptr(), [event.cuda_event for event in events]
    figures = measure(calls(ctypes.CDLL("libcuda.so.1"), stream.cuda_stream, *addresses), host_us, file)
    print(*figures["says"], sep="\n")
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
