"""Presets of machines: the peaks of a GPU and of its links, from data sheets.

What of a peak is usable is uncertain; `constants` has the ranges. `relibra calibrate` replaces computed expert times by
a measured curve.

Generations of NVLink differ in rate, so a measurement belongs to the generation that it was made on. UltraEP's 706 to
715 GB/s are one of NVLink 5: with the expert that its test sends by default (37.7 MB), 0.214 ms at 706 GB/s are exactly
the four replicas of the busiest expert leaving one GPU, which is more than the 450 GB/s that NVLink 4 has in one
direction.
"""

from dataclasses import dataclass

from relibra.errors import InvalidInput
from relibra.planning.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The peaks of one GPU and of its share of the networks. All rates of links are those of one direction."""

    name: str
    flop_per_us: float
    """Dense bf16."""
    hbm_bytes_per_us: float
    nvlink: int
    """The generation of NVLink inside a node."""
    nvlink_bytes_per_us: float
    network_bytes_per_us: float
    """The rate of one GPU's adapter."""
    num_sms: int
    """The number of streaming multiprocessors."""
    source: str
    measured: CostModel | None = None
    """The measured times of one expert; without them, times are computed from the peaks."""


def _of_peaks(
    name: str, tflops: float, hbm: float, nvlink: int, nvlink_rate: float, network: float, num_sms: int, source: str
) -> Hardware:
    """Return hardware from its peaks in TFLOP/s and GB/s."""
    return Hardware(
        name=name,
        flop_per_us=tflops * 1e6,
        hbm_bytes_per_us=hbm * 1e3,
        nvlink=nvlink,
        nvlink_bytes_per_us=nvlink_rate * 1e3,
        network_bytes_per_us=network * 1e3,
        num_sms=num_sms,
        source=source,
    )


HARDWARE = {
    machine.name: machine
    for machine in (
        _of_peaks("h100", 989, 3350, 4, 450, 50, 132, "H100 SXM5 data sheet; 8 x 400 Gb/s adapters a node"),
        _of_peaks("h200", 989, 4800, 4, 450, 50, 132, "H200 SXM data sheet; 8 x 400 Gb/s adapters a node"),
        _of_peaks(
            "h800", 989, 3350, 4, 200, 50, 132, "H800: as H100 with NVLink of 400 GB/s; 8 x 400 Gb/s adapters a node"
        ),
        _of_peaks("a100", 312, 2039, 3, 300, 25, 108, "A100 SXM4 80 GB data sheet; 8 x 200 Gb/s adapters a node"),
        _of_peaks("b200", 2250, 8000, 5, 900, 50, 148, "HGX B200 data sheet; 8 x 400 Gb/s adapters a node"),
        _of_peaks("gb200", 2500, 8000, 5, 900, 50, 152, "GB200 NVL72 data sheet; a 400 Gb/s adapter a GPU"),
    )
}
"""Presets by name. A node of gb200 is a rack: its GPUs per node are those of the NVLink domain."""


def hardware_of(name: str) -> Hardware:
    """Return the preset of this name.

    Raises:
        InvalidInput: there is no preset of this name.
    """
    if name not in HARDWARE:
        raise InvalidInput.of("hardware", expected=f"one of {', '.join(HARDWARE)}", got=name)
    return HARDWARE[name]
