"""Measure kernels and the times of experts on a CUDA device.

    python -m benchmarks.gpu.measure --figures FILE

`relibra calibrate` reads the file. `launch_us` has the host time of one call on tiny tensors, by operator; `torch` is
`Tensor.add_`, for comparison. A row of `kernels` compares one kernel with a device-to-device copy of as many bytes,
measured right after it; `moved_bytes` are read or written, each once. GB are 10^9 bytes. When a part fails, the others
still run, and the exit status is 1.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import experts
from benchmarks.gpu.timing import device_us, host_us
from relibra.atomic_file import write_atomically
from relibra.kernels import REST, driver, expert_pack, expert_unpack, grad_accumulate, quota_remap

GOAL = 0.9
"""The share of a copy's bandwidth that a kernel should reach."""
_EXPERT_SIZES = (9_000_000, 30_000_000, 90_000_000)
_TOTAL_BYTES = 1 << 30
_CUDA = torch.device("cuda")

Figures = dict[str, Any]


def _rate(kernel: str, case: str, moved_bytes: int, run: Callable[[], object]) -> dict[str, object]:
    time_us = device_us(run)
    source = torch.randint(0, 256, (moved_bytes // 2,), dtype=torch.uint8, device=_CUDA)
    copy_us = device_us(partial(torch.empty_like(source).copy_, source))
    return {
        "kernel": kernel,
        "case": case,
        "moved_bytes": moved_bytes,
        "time_us": time_us,
        "gb_per_s": moved_bytes / time_us / 1e3,
        "share_of_copy": copy_us / time_us,
    }


def _weights(size_bytes: int, num: int) -> list[Tensor]:
    """Return the weights of `num` experts: two bf16 tensors each, of two thirds and one third of the expert's size."""
    shapes = [size_bytes // 3, size_bytes // 6]
    return [torch.randn(shape, device=_CUDA, dtype=torch.bfloat16) for _ in range(num) for shape in shapes]


def _moves(figures: Figures, size_bytes: int) -> None:
    weights, case = _weights(size_bytes, _TOTAL_BYTES // size_bytes), f"{size_bytes // 10**6} MB experts"
    moved_bytes, packed = 2 * sum(tensor.nbytes for tensor in weights), expert_pack(weights, _CUDA)
    figures["kernels"] += [
        _rate("expert_pack", case, moved_bytes, partial(expert_pack, weights, _CUDA)),
        _rate("expert_unpack", case, moved_bytes, partial(expert_unpack, packed, weights)),
    ]


def _sums(figures: Figures, size_bytes: int) -> None:
    num = _TOTAL_BYTES // 2 // size_bytes
    for num_replicas in (1, 3):
        replicas = [_weights(size_bytes, num) for _ in range(num_replicas)]
        into = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in replicas[0]]
        moved_bytes = 2 * sum(target.nbytes for target in into) + sum(g.nbytes for some in replicas for g in some)
        case, gradients = f"{size_bytes // 10**6} MB experts, {num_replicas} bf16", list(zip(*replicas, strict=True))
        run = partial(grad_accumulate, into, gradients)
        figures["kernels"].append(_rate("grad_accumulate", case, moved_bytes, run))


def _routings(figures: Figures) -> None:
    for num_tokens, num_experts, num_replicas in ((8192, 128, 16), (16384, 256, 128)):
        chosen_TK = torch.rand(num_tokens, num_experts, device=_CUDA).topk(8, dim=1).indices
        routing_map_TE = torch.zeros(num_tokens, num_experts, device=_CUDA, dtype=torch.bool).scatter_(1, chosen_TK, 1)
        probs_TE = torch.rand(num_tokens, num_experts, device=_CUDA) * routing_map_TE
        slot_expert_P = (torch.arange(num_experts + num_replicas) % num_experts).int().to(_CUDA)
        share_P = torch.tensor([REST] * num_experts + [100] * num_replicas).int().to(_CUDA)
        written_bytes = num_tokens * (num_experts + num_replicas) * (probs_TE.element_size() + 1)
        case = f"{num_tokens} tokens, {num_experts} experts, {num_experts + num_replicas} slots, fp32"
        run = partial(quota_remap, probs_TE, routing_map_TE, slot_expert_P, share_P)
        moved_bytes = routing_map_TE.nbytes + probs_TE.nbytes + written_bytes
        figures["kernels"].append(_rate("quota_remap", case, moved_bytes, run))


def _launches(figures: Figures) -> None:
    value, slot = torch.ones(64, device=_CUDA), torch.zeros(64, device=_CUDA)
    probs_TE, slot_expert_P = torch.ones(8, 8, device=_CUDA), torch.arange(8, device=_CUDA, dtype=torch.int32)
    rest_P = torch.full_like(slot_expert_P, REST)
    calls: dict[str, Callable[[], object]] = {
        "torch": partial(slot.add_, 1),
        "expert_pack": partial(expert_pack, [value], _CUDA),
        "expert_unpack": partial(expert_unpack, expert_pack([value], _CUDA), [slot]),
        "grad_accumulate": partial(grad_accumulate, [slot], [[value]]),
        "quota_remap": partial(quota_remap, probs_TE, probs_TE > 0, slot_expert_P, rest_P),
    }
    figures["launch_us"] = {name: host_us(call) for name, call in calls.items()}


def _expert_times(figures: Figures, preset: str) -> None:
    figures["experts"].append(experts.measured(preset))


def says(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the figures in a few lines: the worst case of each kernel, launches, and what failed."""
    worst = {each["kernel"]: each for each in sorted(figures["kernels"], key=lambda row: -row["share_of_copy"])}
    for each in worst.values():
        below = "" if each["share_of_copy"] >= GOAL else f"  BELOW {GOAL}"
        rate = f"{each['gb_per_s']:.0f} GB/s = {each['share_of_copy']:.3f} of a copy{below}"
        yield f"worst {each['kernel']}, {each['case']}: {rate}"
    yield from (f"{name}: {us:.1f} us of host a call" for name, us in figures["launch_us"].items())
    yield from (f"FAILED {each}" for each in figures["failures"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every part; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, required=True, help="where to write the figures, as JSON")
    file = parser.parse_args(arguments).figures
    if not torch.cuda.is_available():
        print(f"expected a CUDA device, got torch {torch.__version__}, which sees none", file=sys.stderr)
        return 1
    if driver.device(torch.cuda.current_device()) is None:
        return 1
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    figures: Figures = {"machine": machine, "launch_us": {}, "kernels": [], "experts": [], "failures": []}
    parts: list[Callable[[Figures], None]] = [_launches, _routings]
    parts += [partial(part, size_bytes=size) for part in (_moves, _sums) for size in _EXPERT_SIZES]
    parts += [partial(_expert_times, preset=preset) for preset in experts.PRESETS]
    for part in parts:
        try:
            part(figures)
        except Exception as error:
            traceback.print_exc()
            figures["failures"].append(f"{part}: {error}")
        figures["says"] = list(says(figures))
        write_atomically(file, json.dumps(figures).encode())
        torch.cuda.empty_cache()
    print(json.dumps(figures, indent=1))
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
