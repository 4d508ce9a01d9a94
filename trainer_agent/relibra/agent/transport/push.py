"""By which way a GPU pushes bytes into a peer's memory: by a copy engine, or by a kernel on a few multiprocessors.

A copy engine takes nothing from what computes beside it, and is nearly free (FEPLB). A kernel may be faster, but its
multiprocessors are missing elsewhere as long as it runs. Most of a push hides behind computation, as the cost model has
it, and so a kernel must be faster by far. A wrong choice costs time alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from relibra.kernels import expert_push
from relibra.planning.cost import CostModel

NUM_SMS = 16
"""Multiprocessors of a kernel that pushes."""

PushWay = Literal["copy engine", "kernel"]

_FEW_BYTES, _NUM_TRIALS = 4096, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSpeed:
    """How fast one way is, and what it takes from computation."""

    launch_us: float
    """What the smallest push lasts."""
    bytes_per_us: float
    sm_share: float = 0.0
    """Part of the device's multiprocessors that it keeps busy."""

    def cost_us(self, size_bytes: int, hidden_share: float) -> float:
        """Return what a push adds to a step: its part that does not hide, and what it keeps from computing."""
        return (self.launch_us + size_bytes / self.bytes_per_us) * (1 - hidden_share + self.sm_share)


class PushSpeeds(NamedTuple):
    """Of both ways from one device to another."""

    copy_engine: PushSpeed
    kernel: PushSpeed


def push_way(
    size_bytes: int, speeds: PushSpeeds, hidden_share: float = CostModel().hidden_transfer_share
) -> tuple[PushWay, str]:
    """Choose the way that costs least, and say why; the copy engine where it is all the same.

    Args:
        size_bytes: of the push.
        speeds: measured.
        hidden_share: part of a push that hides behind computation, as in `CostModel`; pushes are made with its default,
            as nobody tells an agent what the job is planned with.
    """
    engine_us, kernel_us = (speed.cost_us(size_bytes, hidden_share) for speed in speeds)
    way: PushWay = "kernel" if kernel_us < engine_us else "copy engine"
    return way, f"{size_bytes} bytes cost a step {engine_us:.2f} us by copy engine and {kernel_us:.2f} us by kernel"


def measured(device: torch.device, into: Tensor) -> PushSpeeds:
    """Measure both ways.

    Args:
        device: CUDA, that pushes.
        into: uint8 memory of a peer that nobody reads meanwhile; as much of it as is pushed at a time.
    """
    source = torch.zeros_like(into, device=device)
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count

    def speed(push: Callable[[Tensor, Tensor], object], sm_share: float) -> PushSpeed:
        with torch.cuda.device(device):
            few_us, all_us = (_fastest_us(push, into[:size], source[:size]) for size in (_FEW_BYTES, len(into)))
        bytes_per_us = (len(into) - _FEW_BYTES) / max(all_us - few_us, 1e-3)
        return PushSpeed(launch_us=few_us, bytes_per_us=bytes_per_us, sm_share=sm_share)

    return PushSpeeds(
        copy_engine=speed(lambda to, of: to.copy_(of, non_blocking=True), 0.0),
        kernel=speed(lambda to, of: expert_push([of], [to], num_sms=NUM_SMS), min(1.0, NUM_SMS / num_sms)),
    )


def _fastest_us(push: Callable[[Tensor, Tensor], object], into: Tensor, source: Tensor) -> float:
    lasted_us = list[float]()
    for _ in range(_NUM_TRIALS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        push(into, source)
        ended.record()
        ended.synchronize()
        lasted_us.append(1e3 * float(began.elapsed_time(ended)))
    return min(lasted_us)
