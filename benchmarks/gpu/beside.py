"""Measure how much a grouped product and copies slow each other down on one device.

    python -m benchmarks.gpu.beside --figures FILE

Copy engines carry bytes between host and device here, in both directions; between devices they need no more of the
device's memory. Multiprocessors carry bytes within the device, with the kernel of `expert_pack`. The figures are
written after every kind of copy.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import experts
from relibra.atomic_file import write_atomically
from relibra.kernels import expert_pack

_PRESET, _NUM_TOKENS = "qwen3-235b-a22b", 4096
_COPY_BYTES = 256 << 20
_NUM_PRODUCTS, _NUM_COPIES = 20, 8
_CUDA = torch.device("cuda")

Run = Callable[[], object]


def together_us(run: Run, num: int, other: Run, num_other: int) -> tuple[float, float]:
    """Return the device time of `run`, called `num` times, and of `other`, from one start on two streams.

    With 0 calls of one, this is the time of the other alone.
    """
    streams, times = [torch.cuda.Stream(), torch.cuda.Stream()], list[float]()
    begin = torch.cuda.Event(enable_timing=True)
    ends = [torch.cuda.Event(enable_timing=True) for _ in streams]
    torch.cuda.synchronize()
    begin.record()
    for stream in streams:
        stream.wait_event(begin)
    for stream, end, call, num_calls in zip(streams, ends, (run, other), (num, num_other), strict=True):
        with torch.cuda.stream(stream):
            for _ in range(num_calls):
                call()
            end.record()
    torch.cuda.synchronize()
    times += [1e3 * begin.elapsed_time(end) for end in ends]
    return times[0], times[1]


def row(copies: str, alone_us: float, copy_us: float, both: tuple[float, float]) -> dict[str, object]:
    """Return what one kind of copy costs beside products.

    Args:
        copies: the kind.
        alone_us: the time of the products alone.
        copy_us: the time of the copies alone.
        both: the times of products and copies that begin together.
    """
    return {
        "copies": copies,
        "product_alone_us": alone_us,
        "copy_alone_us": copy_us,
        "product_us": both[0],
        "copy_us": both[1],
        # If neither slows the other down, both are over when the longer one is.
        "hidden_share": max(0.0, min(1.0, (alone_us + copy_us - max(both)) / min(alone_us, copy_us))),
    }


def says(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures in a line for each kind of copy."""
    for each in figures["rows"]:
        yield (
            "{copies}: {hidden_share:.0%} of the shorter lies beside the longer; products {product_alone_us:.0f} us "
            "alone, {product_us:.0f} beside copies; copies {copy_alone_us:.0f} us alone, {copy_us:.0f} beside products"
        ).format(**each)


def main() -> int:
    """Measure; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, required=True, help="where to write the figures, as JSON")
    file = parser.parse_args().figures
    host, device = (
        torch.zeros(_COPY_BYTES, dtype=torch.uint8, **where) for where in ({"pin_memory": True}, {"device": _CUDA})
    )
    back, kept = torch.empty_like(host, pin_memory=True), torch.empty_like(device)
    copies: dict[str, Run] = {
        "copy engine, from the host": partial(device.copy_, host, non_blocking=True),
        "copy engine, to the host": partial(back.copy_, device, non_blocking=True),
        "multiprocessors": partial(expert_pack, [kept], _CUDA),
    }
    product, nothing = experts.forward(_PRESET, _NUM_TOKENS, experts.best_product()), lambda: None
    figures: dict[str, Any] = {"rows": []}
    for name, copy in copies.items():
        for call in (product, copy):
            call()
        alone_us, _ = together_us(product, _NUM_PRODUCTS, nothing, 0)
        copy_us, _ = together_us(copy, _NUM_COPIES, nothing, 0)
        figures["rows"].append(row(name, alone_us, copy_us, together_us(product, _NUM_PRODUCTS, copy, _NUM_COPIES)))
        figures["says"] = list(says(figures))
        write_atomically(file, json.dumps(figures).encode())
    print(*figures["says"], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
