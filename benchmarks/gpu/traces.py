"""What a Chrome trace of torch's profiler says of one rank: launches, waits, and transfers beside computation.

Times are microseconds. Functions take the `traceEvents` of a trace; events without a duration do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
Interval = tuple[float, float]

_CALLS = {
    "launches": ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaGraphLaunch", "cuLaunchKernel"),
    "copies": ("cudaMemcpyAsync", "cudaMemsetAsync"),
    "waits": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
}
_TRANSFERS = ("nccl", "memcpy ptop", "memcpy htod", "memcpy dtoh", "memcpy p2p")


def runtime_calls(events: Iterable[Event]) -> dict[str, int]:
    """Count the calls of the CUDA runtime and driver: `launches` of kernels and graphs, `copies`, and host `waits`."""
    names = [event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    return {kind: sum(name.startswith(of_kind) for name in names) for kind, of_kind in _CALLS.items()}


def overlap(events: Sequence[Event]) -> dict[str, float] | None:
    """Return the device time of transfers and of computation, and how much of the former lies beside the latter.

    Transfers are NCCL's kernels and copies between devices or with the host; all other kernels are computation.
    Returns None if the trace has no event of a device.
    """
    transfers, computation = list[Interval](), list[Interval]()
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in event:
            is_transfer = event["name"].lower().startswith(_TRANSFERS)
            (transfers if is_transfer else computation).append((event["ts"], event["ts"] + event["dur"]))
    if not transfers and not computation:
        return None
    transfer_us, compute_us = covered_us(transfers), covered_us(computation)
    hidden_us = transfer_us + compute_us - covered_us(transfers + computation)
    return {"transfer_us": transfer_us, "compute_us": compute_us, "hidden_us": hidden_us}


def covered_us(intervals: Iterable[Interval]) -> float:
    """Return the time that lies in any of the intervals."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
