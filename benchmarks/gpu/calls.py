"""Measure what calls of the CUDA driver cost the host, one by one and in batches, as transports make them.

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
from relibra.errors import RelibraError
from relibra.kernels.context import Context, context
from relibra.kernels.stream_work import Wait, Write, copies_call, words_call

_BATCHES = (1, 2, 8, 32)
_COPY_BYTES = 1 << 16


class Call(NamedTuple):
    """A call of the driver."""

    name: str
    num_operations: int
    run: Callable[[], None]
    """Raises RelibraError if the driver refuses."""


def calls(of: Context, stream: int, words: int, source: int, into: int, events: Sequence[int]) -> Iterator[Call]:
    """Yield all calls that are measured.

    Args:
        of: the context of the device.
        stream: a stream that nothing else uses.
        words: the address of as many words of 64 bits as the largest batch has, all 0, so that waits for 0 are over.
        source: the address of as many parts of `_COPY_BYTES`.
        into: the address of as many more such parts.
        events: a recorded event, and one to record.
    """
    handle = ctypes.c_void_p(stream)
    recorded, other = map(ctypes.c_void_p, events)
    lib = of.lib
    yield Call("record an event", 1, lambda: of.check("cuEventRecord", lib.cuEventRecord(other, handle)))
    yield Call(
        "wait for an event", 1, lambda: of.check("cuStreamWaitEvent", lib.cuStreamWaitEvent(handle, recorded, 0))
    )
    for num in _BATCHES:
        queue_words = words_call(of, [(Wait if i % 2 else Write)(words + 8 * i, 0) for i in range(num)])
        yield Call("write and wait for words", num, lambda queue=queue_words: queue(handle, 0))
    for num in _BATCHES:
        queue_copies = copies_call(
            of, [(into + at, source + at, _COPY_BYTES) for at in range(0, num * _COPY_BYTES, _COPY_BYTES)]
        )
        yield Call("copies", num, lambda queue=queue_copies: queue(handle, 0))


def measure(some: Iterator[Call], time_us: Callable[[Callable[[], object]], float], file: Path) -> dict[str, Any]:
    """Time calls; write the figures after each one."""
    figures: dict[str, Any] = {"calls": [], "failures": []}
    for call in some:
        try:
            call.run()
        except RelibraError as error:
            figures["failures"].append(f"{call.name}, {call.num_operations} at once: {error}")
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
    words = torch.zeros(max(_BATCHES), dtype=torch.int64, device="cuda")
    source, into = (torch.zeros(max(_BATCHES) * _COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    stream, events = torch.cuda.Stream(), [torch.cuda.Event(), torch.cuda.Event()]
    for event in events:
        event.record(stream)
    torch.cuda.synchronize()
    addresses = words.data_ptr(), source.data_ptr(), into.data_ptr(), [event.cuda_event for event in events]
    figures = measure(calls(context(torch.cuda.current_device()), stream.cuda_stream, *addresses), host_us, file)
    print(*figures["says"], sep="\n")
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
