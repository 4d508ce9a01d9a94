"""What a Chrome trace of torch's profiler says of one rank: launches, waits, and transfers beside computation.

Times are microseconds. Functions take the `traceEvents` of a trace; events without a duration do not count.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]
Interval = tuple[float, float]

_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaGraphLaunch", "cuLaunchKernel")
_COPIES = ("cudaMemcpyAsync", "cudaMemsetAsync")
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_TRANSFERS = ("nccl", "memcpy ptop", "memcpy htod", "memcpy dtoh", "memcpy p2p")


def runtime_calls(events: Iterable[Event]) -> dict[str, int]:
    """Count the calls of the CUDA runtime and driver: `launches` of kernels and graphs, `copies`, and host `waits`."""
    names = Counter(event["name"] for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver"))
    kinds = {"launches": _LAUNCHES, "copies": _COPIES, "waits": _WAITS}
    return {kind: sum(n for name, n in names.items() if name.startswith(of_kind)) for kind, of_kind in kinds.items()}


def operators(events: Iterable[Event]) -> int:
    """Count the operators of torch, those inside others as well."""
    return sum(event.get("cat") == "cpu_op" for event in events)


def annotated_us(events: Iterable[Event]) -> dict[str, float]:
    """Return the host time of each of the agent's annotations, over all layers."""
    times: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "user_annotation" and event["name"].startswith("relibra::") and "dur" in event:
            times[event["name"].partition(" ")[0]] += event["dur"]
    return dict(times)


def overlap(events: Sequence[Event]) -> dict[str, float] | None:
    """Return the device time of transfers and of computation, and how much of the former lies beside the latter.

    Transfers are NCCL's kernels and copies between devices or with the host; all other kernels are computation.
    Returns None if the trace has no event of a device.
    """
    on_device = [event for event in events if event.get("cat") in _ON_DEVICE and "dur" in event]
    if not on_device:
        return None
    transfers, computation = list[Interval](), list[Interval]()
    for event in on_device:
        is_transfer = event["name"].lower().startswith(_TRANSFERS)
        (transfers if is_transfer else computation).append((event["ts"], event["ts"] + event["dur"]))
    transfers, computation = union(transfers), union(computation)
    transfer_us, hidden_us = _length(transfers), common_us(transfers, computation)
    return {
        "transfer_us": transfer_us,
        "compute_us": _length(computation),
        "hidden_us": hidden_us,
        "hidden_share": hidden_us / transfer_us if transfer_us else 1.0,
    }


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals in order that cover the same time."""
    merged = list[Interval]()
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def common_us(some: Sequence[Interval], others: Sequence[Interval]) -> float:
    """Return the time that lies in both of two lists of disjoint intervals in order."""
    total, at = 0.0, 0
    for begin, end in some:
        while at < len(others) and others[at][1] <= begin:
            at += 1
        index = at
        while index < len(others) and others[index][0] < end:
            total += min(end, others[index][1]) - max(begin, others[index][0])
            index += 1
    return total


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)
