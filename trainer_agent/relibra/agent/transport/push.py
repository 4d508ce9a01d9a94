"""The choice of how a GPU pushes bytes into a peer's memory: by a copy engine, or by a kernel on a few multiprocessors.

A copy engine takes nothing from the computation beside it, and is nearly free (FEPLB). A kernel may be faster, but the
computation cannot use its multiprocessors while it runs. Most of a push hides behind computation, as in the cost model,
so a kernel must be much faster to be worth it. A wrong choice costs only time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from relibra.kernels import expert_push
from relibra.planning.cost import CostModel

NUM_SMS = 16
"""The number of multiprocessors that the push kernel uses."""

PushWay = Literal["copy engine", "kernel"]

_FEW_BYTES, _NUM_TRIALS = 4096, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSpeed:
    """The speed of one way to push, and the part of the device that it takes from computation."""

    launch_us: float
    """The time of the smallest push."""
    bytes_per_us: float
    sm_share: float = 0.0
    """The part of the device's multiprocessors that a push keeps busy."""

    def cost_us(self, size_bytes: int, hidden_share: float) -> float:
        """Return the time that a push adds to a step: its unhidden part, and the computation that it displaces."""
        return (self.launch_us + size_bytes / self.bytes_per_us) * (1 - hidden_share + self.sm_share)


class PushSpeeds(NamedTuple):
    """The speeds of both ways from one device to another."""

    copy_engine: PushSpeed
    kernel: PushSpeed


def push_way(
    size_bytes: int, speeds: PushSpeeds, hidden_share: float = CostModel().hidden_transfer_share
) -> tuple[PushWay, str]:
    """Return the cheaper way for a push, and the reason. If both cost the same, it is the copy engine.

    Args:
        size_bytes: size of the push.
        speeds: as measured.
        hidden_share: the part of a push that hides behind computation, as in `CostModel`. The agent uses the default,
            because it does not know the cost model of its job.
    """
    engine_us, kernel_us = (speed.cost_us(size_bytes, hidden_share) for speed in speeds)
    way: PushWay = "kernel" if kernel_us < engine_us else "copy engine"
    return way, f"{size_bytes} bytes cost a step {engine_us:.2f} us by copy engine and {kernel_us:.2f} us by kernel"


def measured(device: torch.device, into: Tensor) -> PushSpeeds:
    """Measure both ways.

    Args:
        device: the CUDA device that pushes.
        into: uint8 memory of a peer that nobody reads meanwhile, as large as one push.
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
