"""Measure kernels, host paths and expert times on a CUDA device.

    python -m benchmarks.gpu [--figures FILE]

Prints a summary and writes `benchmarks/results/gpu-<device>.json` (fields: `report`). If the variable OUT names a
folder, writes the file there too. Needs torch with CUDA, and relibra on the path. When a part fails, the others still
run, and the exit status is 1.
"""

import argparse
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.experts import PRESETS, measure_experts
from benchmarks.gpu.report import GOAL, GpuReport, HostPath, KernelRate, Machine
from benchmarks.gpu.timing import device_us, host_us, stream_us
from benchmarks.results import RESULTS
from relibra.atomic_file import write_atomically
from relibra.kernels import (
    REST,
    driver,
    expert_pack,
    expert_unpack,
    grad_accumulate,
    nvrtc,
    quota_remap,
    reference,
)

_EXPERT_SIZES = (9_000_000, 30_000_000, 90_000_000)
_TOTAL_BYTES = 1 << 30
_CUDA = torch.device("cuda")

Call = Callable[[], object]


def _copy_gb_per_s(moved_bytes: int) -> float:
    source = torch.randint(0, 256, (moved_bytes // 2,), dtype=torch.uint8, device=_CUDA)
    return moved_bytes / device_us(partial(torch.empty_like(source).copy_, source)) / 1e3


def _rate(kernel: str, case: str, moved_bytes: int, run: Call, by_torch: Call) -> KernelRate:
    time_us, copy_gb_per_s = device_us(run), _copy_gb_per_s(moved_bytes)
    gb_per_s = moved_bytes / time_us / 1e3
    share_of_copy = gb_per_s / copy_gb_per_s
    return KernelRate(
        kernel=kernel,
        case=case,
        moved_bytes=moved_bytes,
        time_us=time_us,
        gb_per_s=gb_per_s,
        copy_gb_per_s=copy_gb_per_s,
        share_of_copy=share_of_copy,
        is_below_goal=share_of_copy < GOAL,
        reference_us=stream_us(by_torch),
    )


def _experts(size_bytes: int, num: int) -> list[Tensor]:
    """Return the weights of `num` experts: two bf16 tensors each, of two thirds and one third of the expert's size."""
    shapes = [size_bytes // 3, size_bytes // 6]
    return [torch.randn(shape, device=_CUDA, dtype=torch.bfloat16) for _ in range(num) for shape in shapes]


def _moves(report: GpuReport, size_bytes: int) -> None:
    experts, case = _experts(size_bytes, _TOTAL_BYTES // size_bytes), f"{size_bytes // 10**6} MB experts"
    moved_bytes, buffer = 2 * sum(tensor.nbytes for tensor in experts), expert_pack(experts, _CUDA)
    arguments = {"expert_pack": (experts, _CUDA), "expert_unpack": (buffer, experts)}
    for name, operator in (("expert_pack", expert_pack), ("expert_unpack", expert_unpack)):
        by_torch = partial(getattr(reference, name), *arguments[name])
        report.kernels.append(_rate(name, case, moved_bytes, partial(operator, *arguments[name]), by_torch))


def _sums(report: GpuReport, size_bytes: int) -> None:
    num = _TOTAL_BYTES // 2 // size_bytes
    for num_replicas in (1, 3):
        replicas = [_experts(size_bytes, num) for _ in range(num_replicas)]
        into = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in replicas[0]]
        gradients = list(zip(*replicas, strict=True))
        moved_bytes = 2 * sum(target.nbytes for target in into) + sum(g.nbytes for some in replicas for g in some)
        case = f"{size_bytes // 10**6} MB experts, {num_replicas} bf16"
        run, by_torch = (partial(f, into, gradients) for f in (grad_accumulate, reference.grad_accumulate))
        report.kernels.append(_rate("grad_accumulate", case, moved_bytes, run, by_torch))


def _routings(report: GpuReport) -> None:
    for num_tokens, num_experts, num_replicas in ((8192, 128, 16), (16384, 256, 128)):
        chosen_TK = torch.rand(num_tokens, num_experts, device=_CUDA).topk(8, dim=1).indices
        routing_map_TE = torch.zeros(num_tokens, num_experts, device=_CUDA, dtype=torch.bool).scatter_(1, chosen_TK, 1)
        probs_TE = torch.rand(num_tokens, num_experts, device=_CUDA) * routing_map_TE
        slot_expert_P = (torch.arange(num_experts + num_replicas) % num_experts).int().to(_CUDA)
        share_P = torch.tensor([REST] * num_experts + [100] * num_replicas).int().to(_CUDA)
        arguments = (probs_TE, routing_map_TE, slot_expert_P, share_P)
        written_bytes = num_tokens * (num_experts + num_replicas) * (probs_TE.element_size() + 1)
        moved_bytes = routing_map_TE.nbytes + probs_TE.nbytes + written_bytes
        case = f"{num_tokens} tokens, {num_experts} experts, {num_experts + num_replicas} slots, fp32"
        run, by_torch = (partial(f, *arguments) for f in (quota_remap, reference.quota_remap))
        report.kernels.append(_rate("quota_remap", case, moved_bytes, run, by_torch))


def _host_paths(report: GpuReport, size_bytes: int) -> None:
    if importlib.util.find_spec("grpc") is None:
        print("host paths are not measured: they need the agent's dependencies, and grpc is not installed")
        return
    from relibra.agent.transport import HostWeights, Pull

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group, experts = dist.group.WORLD, [_experts(size_bytes, 1) for _ in range(4)]
    assert group is not None
    host, packed = HostWeights(group, experts), expert_pack([tensor for each in experts for tensor in each], _CUDA)
    pinned = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
    pulls = [Pull(0, i, each) for i, each in enumerate(experts)]
    copies: Sequence[tuple[str, Call, Call]] = (
        ("device_to_host", partial(pinned.copy_, packed, non_blocking=True), host.refresh),
        ("host_to_device", partial(packed.copy_, pinned, non_blocking=True), lambda: host.start(pulls).wait()),
    )
    for direction, copy, path in copies:
        copy_gb_per_s, path_gb_per_s = (packed.nbytes / stream_us(run) / 1e3 for run in (copy, path))
        report.host_paths.append(
            HostPath(
                direction=direction,
                expert_size_bytes=size_bytes,
                copy_gb_per_s=copy_gb_per_s,
                path_gb_per_s=path_gb_per_s,
            )
        )
        setattr(report, f"{direction}_gb_per_s", copy_gb_per_s)


def _launches(report: GpuReport) -> None:
    value = torch.ones(64, device=_CUDA)
    packed, slot = expert_pack([value], _CUDA), torch.zeros(64, device=_CUDA)
    probs_TE, slot_expert_P = torch.ones(8, 8, device=_CUDA), torch.arange(8, device=_CUDA, dtype=torch.int32)
    calls: dict[str, Call] = {
        "torch": partial(slot.add_, 1),
        "expert_pack": partial(expert_pack, [value], _CUDA),
        "expert_unpack": partial(expert_unpack, packed, [slot]),
        "grad_accumulate": partial(grad_accumulate, [slot], [[value]]),
        "quota_remap": partial(
            quota_remap, probs_TE, probs_TE > 0, slot_expert_P, torch.full_like(slot_expert_P, REST)
        ),
    }
    for name, call in calls.items():
        report.launch_us[name] = host_us(call)
        report.graph_launch_us[name] = device_us(call)


def _device_copy(report: GpuReport) -> None:
    report.device_copy_gb_per_s = _copy_gb_per_s(2 * _TOTAL_BYTES)


def _expert_times(report: GpuReport, preset: str) -> None:
    report.experts.append(measure_experts(preset))


def _machine() -> Machine:
    properties = torch.cuda.get_device_properties(_CUDA)
    return Machine(
        device=properties.name,
        num_sms=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        compute_capability=f"{properties.major}.{properties.minor}",
        torch=torch.__version__,
        cuda=str(torch.version.cuda),
        nvrtc="{}.{}".format(*nvrtc.load().version),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _print(report: GpuReport) -> None:
    print(report.machine)
    print(f"device copy {report.device_copy_gb_per_s} GB/s")
    print(*report.kernels, sep="\n")
    for path in report.host_paths:
        rates = f"{path.path_gb_per_s:.1f} of {path.copy_gb_per_s:.1f} GB/s"
        print(f"{path.direction} experts of {path.expert_size_bytes} bytes: {rates}")
    for name, call_us in report.launch_us.items():
        print(f"{name:16} {call_us:.1f} us a call, {report.graph_launch_us.get(name, float('nan')):.1f} us in a graph")
    for times in report.experts:
        points = zip(times.expert_tokens, times.expert_us, strict=True)
        print(times.preset, "grouped" if times.grouped else "batched", *(f"{num}:{us:.1f}" for num, us in points))
    for failure in report.failures:
        print("FAILED", failure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every part; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, help="where to write the figures as well, with a few lines for people")
    figures = parser.parse_args(arguments).figures
    if not torch.cuda.is_available():
        print(f"expected a CUDA device, got torch {torch.__version__}, which sees none", file=sys.stderr)
        return 1
    if driver.device(torch.cuda.current_device()) is None:
        return 1
    report = GpuReport(machine=_machine())
    parts: list[Callable[[GpuReport], None]] = [_device_copy, _launches, _routings]
    parts += [partial(part, size_bytes=size) for part in (_moves, _sums, _host_paths) for size in _EXPERT_SIZES]
    parts += [partial(_expert_times, preset=preset) for preset in PRESETS]
    folders = [RESULTS, *([Path(os.environ["OUT"])] if os.environ.get("OUT") else [])]
    for part in parts:
        try:
            part(report)
        except Exception as error:
            traceback.print_exc()
            report.failures.append(f"{part}: {error}")
        for folder in folders:
            report.write(folder)
        torch.cuda.empty_cache()
    _print(report)
    if figures is not None:
        write_atomically(figures, json.dumps(asdict(report) | {"says": report.says()}).encode())
    return 1 if report.failures else 0
