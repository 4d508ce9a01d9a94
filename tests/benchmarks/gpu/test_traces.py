"""What a Chrome trace says of launches, waits, and transfers beside computation."""

from typing import Any

from benchmarks.gpu.traces import covered_us, overlap, runtime_calls


def event(cat: str, name: str, ts: float = 0.0, dur: float = 1.0) -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def test_launches_copies_and_waits_are_counted_by_the_calls_of_the_runtime() -> None:
    calls = ("cudaLaunchKernel", "cudaLaunchKernelExC_v11060", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc")
    events = [event("cuda_runtime", name) for name in calls]
    events += [event("cuda_driver", "cuLaunchKernel"), event("cpu_op", "cudaLaunchKernel of an operator")]
    assert runtime_calls(events) == {"launches": 3, "copies": 1, "waits": 1}


def test_transfers_beside_computation_are_hidden() -> None:
    events = [
        event("kernel", "ncclDevKernel_SendRecv", 0.0, 10.0),
        event("kernel", "gemm", 2.0, 4.0),
        event("kernel", "gemm", 4.0, 4.0),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20.0, 2.0),
        event("cpu_op", "aten::mm", 20.0, 2.0),
        {"cat": "kernel", "name": "without a duration", "ts": 20.0},
    ]
    assert overlap(events) == {"transfer_us": 12.0, "compute_us": 6.0, "hidden_us": 6.0}


def test_without_a_device_overlap_is_unknown() -> None:
    assert overlap([event("cpu_op", "aten::mm")]) is None


def test_time_in_several_intervals_counts_once() -> None:
    assert covered_us([(5, 6), (0, 2), (1, 3), (3, 4), (0, 1)]) == 5
    assert covered_us([]) == 0
