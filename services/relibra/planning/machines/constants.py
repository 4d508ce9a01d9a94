"""The constants of machines: every one with a range and its sources.

`ranges_of` gives the ranges for a machine and a dispatcher, and `Constants` one choice of values. Prices of jobs and
the simulation take the middles, and `evaluation.estimate` turns the ranges into the ends of a result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from relibra.planning.carriage import WAVE_US
from relibra.planning.cost import CostModel
from relibra.planning.machines.dispatcher import ACROSS_SHARE, INSIDE_SHARE, Dispatcher
from relibra.planning.machines.hardware import Hardware
from relibra.planning.machines.range import Range

GRADIENT_BYTES_PER_WEIGHT_BYTE = 2
"""fp32 gradients of bf16 weights."""

HOST_SPEEDS = ("operation_us", "driver_call_us")
"""The constants that say how fast hosts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """One value for each constant. Rates of links are those of one GPU in one direction."""

    flop_per_us: float
    """Grouped matrix multiplications and attention, in bf16."""
    hbm_bytes_per_us: float
    weight_bytes_per_us: float
    """Weights of replicas on their way inside a node."""
    gradient_bytes_per_us: float
    """fp32 gradients of replicas on their way home, inside a node, with their sum."""
    state_inside_bytes_per_us: float
    """Experts that move inside a node, with their optimizer state."""
    state_across_bytes_per_us: float
    """Experts that move between nodes. Replicas of published ways that cross nodes take it too."""
    dispatch_inside_bytes_per_us: float
    dispatch_across_bytes_per_us: float
    hiding_share: float
    """The part of attention behind which weights and gradients can travel."""
    weight_sm_share: float
    """The part of the GPU that travelling weights take from attention."""
    gradient_sm_share: float
    """The part of the GPU that returning gradients take from attention."""
    operation_us: float
    """The host's time for a small operation of torch (`torch.empty(1).add_(1)`): how fast its core is."""
    driver_call_us: float
    """The host's time for a call of the driver: a launch, a copy or a word of a stream."""
    gather_us: float
    """The time in which ranks gather the counts of a cell, of which no device does anything else."""
    wave_us: float
    """What a wave of a reorder takes beside its bytes: an agreement of all ranks, and the starts of its copies."""
    tile_rows: float
    """The tokens of a tile of grouped matrix multiplication: experts compute whole tiles."""

    @property
    def return_weights(self) -> float:
        """The time in which gradients return, as a multiple of the time in which their weights travel."""
        return GRADIENT_BYTES_PER_WEIGHT_BYTE * self.weight_bytes_per_us / self.gradient_bytes_per_us


_GEMM_SHARE = Range(
    low=0.30,
    mid=0.40,
    high=0.60,
    source="B200: 796 to 950 of 2250 TFLOP/s in bf16 grouped multiplications, forward and backward (pytorch/ao#3174). "
    "H100: 390 to 400 of 989 in dense training as a whole (Megatron, Llama 3), 780 in one large multiplication; "
    "DeepGEMM and Megatron report 350 to 600 for large ones in MoE training. The same share of an A100, and the low "
    "end, are guesses",
)
_HBM_SHARE = Range(
    low=0.60,
    mid=0.80,
    high=0.92,
    source="H100: copies inside one GPU run at 2.57 of 3.35 TB/s (p2pBandwidthLatencyTest in NVIDIA/nccl#1264); "
    "the ends are guesses",
)
_NVLINK_SHARE = {
    3: Range(low=0.70, mid=0.76, high=0.84, source="A100: 216 of 300 GB/s (LAER-MoE); the high end is a guess"),
    4: Range(
        low=0.70,
        mid=0.80,
        high=0.84,
        source="H100: 371 of 450 GB/s with both directions busy, 380 with one (nccl#1264); NCCL 370 (nccl-tests#212); "
        "H800: 160 of 200 (DeepEP README). The low end is a guess",
    ),
    5: Range(
        low=0.71,
        mid=0.79,
        high=0.86,
        source="706 to 715 of 900 GB/s (UltraEP README); 638 to 776 on GB200 (MoonEP#23)",
    ),
}
"""By generation."""
_GRADIENT_RATE = Range(
    low=156e3,
    mid=170e3,
    high=360e3,
    source="UltraEP README: 1.94 to 2.43 ms for the fp32 gradients of 4 to 6 replicas of 75.5 MB: 156 to 187 GB/s, on "
    "NVLink 5 with 42 SMs. That SMs and not the link limit it, and so the same rate on NVLink 4, is a guess; the high "
    "end is a link that nothing slows",
    is_guess=True,
)
_HIDING_SHARE = Range(
    low=0.5, mid=0.8, high=1.0, source="nobody has measured it: dispatch uses the same links", is_guess=True
)
_WEIGHT_SMS = Range(
    low=0,
    mid=16,
    high=32,
    source="NCCL's kernel takes an SM a channel, up to 32 by default; 16 SMs carry 536 GB/s in HybridEP (B200), 24 "
    "carry 643 in DeepEP V2; copy engines take none. Unmeasured for relibra",
    is_guess=True,
)
_GRADIENT_SMS = Range(
    low=16,
    mid=42,
    high=42,
    source="UltraEP's default is 42 SMs (README); the low end is what weights take",
)
_OPERATION_US = Range(
    low=1.0,
    mid=1.65,
    high=4.0,
    source="`torch.empty(1).add_(1)` takes 2.3 us on the busy core on which the host's work was measured, and about 1 "
    "on a core of a server that is not shared. High: 70 % more than measured, for Transformer Engine's modules instead "
    "of megatron's own (a guess). The middle is half-way between the measured ones",
    is_guess=True,
)
_DRIVER_CALL_US = Range(
    low=1.0,
    mid=2.3,
    high=3.6,
    source="High: a cudaMemcpyAsync over NVLink on H100 (meta-pytorch/torchcomms#2195). The low end is a guess, and "
    "the middle is half-way",
    is_guess=True,
)
_GATHER_US = Range(
    low=10,
    mid=20,
    high=40,
    source="an all-gather of NCCL over some hundred integers. Unmeasured; UltraEP's decision includes its own",
    is_guess=True,
)
_WAVE_US = Range(
    low=300,
    mid=WAVE_US,
    high=4000,
    source="a gather and a broadcast over TCP among all ranks, and some tens of launches. Unmeasured",
    is_guess=True,
)
_TILE_ROWS = Range(
    low=64,
    mid=128,
    high=256,
    source="128 rows in DeepGEMM and CUTLASS on Hopper; cuDNN's kernel for Blackwell pads experts to 256; small ones "
    "have 64",
)


def ranges_of(hardware: Hardware, dispatcher: Dispatcher) -> Mapping[str, Range]:
    """Return the range of every constant, by the names in `Constants`.

    Where a cost model was measured, its links replace those of data sheets: they have no range. A file that nobody
    gave rates for has the defaults of `CostModel`, which say nothing about this machine.
    """
    nvlink = _NVLINK_SHARE[hardware.nvlink].times(hardware.nvlink_bytes_per_us)
    across = ACROSS_SHARE[Dispatcher.ALLTOALL].times(hardware.network_bytes_per_us)
    inside_dispatch = INSIDE_SHARE[dispatcher].times(hardware.nvlink_bytes_per_us)
    across_dispatch = ACROSS_SHARE[dispatcher].times(hardware.network_bytes_per_us)
    measured, unknown = hardware.measured, CostModel()
    if measured is not None and measured.intra_node_bytes_per_us != unknown.intra_node_bytes_per_us:
        nvlink = inside_dispatch = _range_of(measured.intra_node_bytes_per_us)
    if measured is not None and measured.inter_node_bytes_per_us != unknown.inter_node_bytes_per_us:
        across = across_dispatch = _range_of(measured.inter_node_bytes_per_us)
    return MappingProxyType(
        {
            "flop_per_us": _GEMM_SHARE.times(hardware.flop_per_us),
            "hbm_bytes_per_us": _HBM_SHARE.times(hardware.hbm_bytes_per_us),
            "weight_bytes_per_us": nvlink,
            "gradient_bytes_per_us": _GRADIENT_RATE.at_most(nvlink),
            "state_inside_bytes_per_us": nvlink,
            "state_across_bytes_per_us": across,
            "dispatch_inside_bytes_per_us": inside_dispatch,
            "dispatch_across_bytes_per_us": across_dispatch,
            "hiding_share": _HIDING_SHARE,
            "weight_sm_share": _WEIGHT_SMS.times(1 / hardware.num_sms),
            "gradient_sm_share": _GRADIENT_SMS.times(1 / hardware.num_sms),
            "operation_us": _OPERATION_US,
            "driver_call_us": _DRIVER_CALL_US,
            "gather_us": _GATHER_US,
            "wave_us": _WAVE_US,
            "tile_rows": _TILE_ROWS,
        }
    )


def middles(ranges: Mapping[str, Range]) -> Constants:
    """Return the constants that jobs and the simulation take by default."""
    return Constants(**{name: range_.mid for name, range_ in ranges.items()})


def _range_of(rate: float) -> Range:
    return Range(low=rate, mid=rate, high=rate, source="the measured cost model")
