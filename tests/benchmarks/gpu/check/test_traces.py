"""What a Chrome trace says of launches, waits, and transfers beside computation."""

from typing import Any

import pytest

from benchmarks.gpu.check.traces import annotated_us, common_us, operators, overlap, runtime_calls, union


def event(cat: str, name: str, ts: float = 0.0, dur: float = 1.0) -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": ts, "dur": dur}


def test_launches_copies_and_waits_are_counted_by_the_calls_of_the_runtime() -> None:
    calls = ("cudaLaunchKernel", "cudaLaunchKernelExC_v11060", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc")
    events = [event("cuda_runtime", name) for name in calls]
    events += [event("cuda_driver", "cuLaunchKernel"), event("cpu_op", "cudaLaunchKernel of an operator")]
    assert runtime_calls(events) == {"launches": 3, "copies": 1, "waits": 1}
    assert operators(events) == 1


def test_annotations_of_all_layers_add_up() -> None:
    names = ("relibra::fetch layer 0", "relibra::fetch layer 3", "relibra::move", "forward layer 1")
    assert annotated_us([event("user_annotation", name, dur=2.0) for name in names]) == {
        "relibra::fetch": 4.0,
        "relibra::move": 2.0,
    }


def test_transfers_beside_computation_are_hidden() -> None:
    events = [
        event("kernel", "ncclDevKernel_SendRecv", 0.0, 10.0),
        event("kernel", "gemm", 2.0, 4.0),
        event("kernel", "gemm", 4.0, 4.0),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20.0, 2.0),
        event("cpu_op", "aten::mm", 20.0, 2.0),
        {"cat": "kernel", "name": "without a duration", "ts": 20.0},
    ]
    assert overlap(events) == {"transfer_us": 12.0, "compute_us": 6.0, "hidden_us": 6.0, "hidden_share": 0.5}


def test_without_a_device_overlap_is_unknown() -> None:
    assert overlap([event("cpu_op", "aten::mm")]) is None


@pytest.mark.parametrize(
    ("some", "others", "common"),
    [
        ([(0, 10)], [(2, 4), (6, 20)], 6),
        ([(0, 1), (3, 4), (5, 9)], [(0, 100)], 6),
        ([(0, 5)], [(5, 9)], 0),
        ([], [(0, 1)], 0),
    ],
)
def test_common_time_of_disjoint_intervals(
    some: list[tuple[float, float]], others: list[tuple[float, float]], common: float
) -> None:
    assert common_us(some, others) == common == common_us(others, some)


def test_a_union_is_in_order_and_disjoint() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]
