"""The report of `python -m benchmarks.gpu`: one JSON document with stable field names.

Times are medians of device time in microseconds unless a name says otherwise; GB are 10^9 bytes.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from relibra.atomic_file import write_atomically

GOAL = 0.9
"""The share of a copy's bandwidth that a kernel should reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine and the versions of a measurement."""

    device: str
    num_sms: int
    memory_bytes: int
    compute_capability: str
    torch: str
    cuda: str
    nvrtc: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRate:
    """One kernel on one case, and a device-to-device copy of as many bytes, measured right after it."""

    kernel: str
    case: str
    moved_bytes: int
    """The bytes read plus the bytes written, each byte once."""
    time_us: float
    gb_per_s: float
    copy_gb_per_s: float
    share_of_copy: float
    is_below_goal: bool
    """Whether the share is below `GOAL`."""
    reference_us: float
    """The time of the same work by torch operations."""

    def __str__(self) -> str:
        """Return a row of the table."""
        share = f"{self.gb_per_s:.0f} GB/s = {self.share_of_copy:.3f} of a copy"
        row = f"{self.kernel:16} {self.case:52} {self.time_us:10.1f} us  {share}, by torch {self.reference_us:.0f} us"
        return f"{row}  BELOW {GOAL}" if self.is_below_goal else row


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """Transfers of experts between the device and the host copy of weights, tensor by tensor, on one rank alone."""

    direction: str
    """`device_to_host` for a refresh, `host_to_device` for pulls."""
    expert_size_bytes: int
    copy_gb_per_s: float
    """The rate of one copy of as many bytes from or to pinned memory; counts bytes one way."""
    path_gb_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTimes:
    """The forward pass of one of several experts with equal load, bf16, SwiGLU; field names as in `CostModel`."""

    preset: str
    hidden_size: int
    ffn_size: int
    weight_size_bytes: int
    num_experts: int
    """The experts that ran together; the times are already divided by this number."""
    grouped: bool
    """Whether one grouped matrix multiplication ran all experts, or a batched one."""
    expert_tokens: tuple[int, ...]
    expert_us: tuple[float, ...]


@dataclass(slots=True, kw_only=True)
class GpuReport:
    """All measurements; a part that failed is named in `failures` and missing elsewhere."""

    machine: Machine
    device_copy_gb_per_s: float | None = None
    """The rate of a copy of 1 GiB; counts bytes read plus written."""
    host_to_device_gb_per_s: float | None = None
    device_to_host_gb_per_s: float | None = None
    """The rates of pinned copies of 90 MB experts; count bytes one way."""
    launch_us: dict[str, float] = field(default_factory=dict)
    """The host time of one call on tiny tensors, by operator; `torch` is `Tensor.add_`, for comparison."""
    graph_launch_us: dict[str, float] = field(default_factory=dict)
    """The device time of the same calls in a CUDA graph."""
    kernels: list[KernelRate] = field(default_factory=list)
    host_paths: list[HostPath] = field(default_factory=list)
    experts: list[ExpertTimes] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def says(self) -> list[str]:
        """Return the figures in a few lines: the worst case of each kernel, and what failed."""
        rate = "unmeasured" if self.device_copy_gb_per_s is None else f"{self.device_copy_gb_per_s:.0f} GB/s"
        lines = [f"device copy: {rate}"]
        for kernel in dict.fromkeys(each.kernel for each in self.kernels):
            lines.append(f"worst {min((e for e in self.kernels if e.kernel == kernel), key=lambda e: e.share_of_copy)}")
        lines += [f"{name}: {us:.1f} us of host a call" for name, us in self.launch_us.items()]
        return [*lines, *(f"FAILED {each}" for each in self.failures)]

    def write(self, folder: Path) -> Path:
        """Write `gpu-<device>.json`; return its path."""
        name = "-".join(self.machine.device.lower().split())
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"gpu-{name}.json"
        write_atomically(path, (json.dumps(asdict(self), indent=1) + "\n").encode())
        return path
