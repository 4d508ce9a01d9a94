"""The ways in which frameworks send tokens to their experts, and what of a link's peak each of them reaches.

All rates are bytes on the wire. Publications that count tokens which stay on their GPU or node are converted: of the
*logical* rates of DeepEP and HybridEP between N nodes, (N - 1) / N is on the wire, and 7/8 inside a node of 8. NCCL's
`busbw` between N nodes of G GPUs becomes `busbw` x (N G - G) / (N G - 1).
"""

from enum import Enum

from relibra.planning.cost import BF16_BYTES
from relibra.planning.machines.range import Range

NUM_FORWARDS = 2
"""The forward passes of a step: one of RECOMPUTE, and one of UPDATE, which also runs backward."""


class Dispatcher(Enum):
    """What sends tokens to their experts and back."""

    ALLTOALL = "alltoall"
    """Megatron's default: an all-to-all of NCCL. Every token copy travels on its own."""
    DEEPEP = "deepep"
    """DeepEP's normal kernels: a token travels once to every node, and there once to every rank, that needs it."""
    HYBRIDEP = "hybridep"
    """NVIDIA's HybridEP: sends as DeepEP does."""

    @property
    def sends_once_per_node(self) -> bool:
        """Whether a token travels only once to a node, however many of its experts are there."""
        return self is not Dispatcher.ALLTOALL


def token_size_bytes(hidden_size: int) -> int:
    """Return the bytes that dispatch and combine move together for a token: bf16 both ways, as Megatron sends it."""
    return 2 * BF16_BYTES * hidden_size


ACROSS_SHARE = {
    Dispatcher.ALLTOALL: Range(
        low=0.38,
        mid=0.60,
        high=0.88,
        source="400 Gb/s adapters: 19 GB/s (16 H20 nodes, NVIDIA/nccl#1792), 22 to 25 GB/s (8 H800 nodes, 8 MB, "
        "nccl#1531), 13 GB/s on hosts with a fault (nccl#2409). NVIDIA expects up to 48 of a tuned fabric "
        "(nccl-tests#267, #290); the high end is a tenth less. The middle is a guess",
        is_guess=True,
    ),
    Dispatcher.DEEPEP: Range(
        low=0.80,
        mid=0.87,
        high=0.92,
        source="V1 on 4 and 8 H800 nodes: 43 to 45 GB/s (DeepEP docs/legacy.md: 58 and 51 logical). V2 on 2 and 4 "
        "Hopper nodes: 41 to 46 (README: 81 to 90 and 61 logical). The low end is a guess",
    ),
    Dispatcher.HYBRIDEP: Range(
        low=0.57,
        mid=0.71,
        high=0.88,
        source="H100, bf16, by torch API: 29 GB/s on 2 nodes, 35 on 4, 36 on 8; kernels alone 36 to 44 "
        "(DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md, 8 SMs)",
    ),
}
"""The share of an adapter's peak that dispatch between nodes reaches."""

INSIDE_SHARE = {
    Dispatcher.ALLTOALL: Range(
        low=0.60,
        mid=0.75,
        high=0.82,
        source="370 of 450 GB/s is what NCCL reaches at best (NVIDIA in nccl-tests#212); the rest is a guess",
        is_guess=True,
    ),
    Dispatcher.DEEPEP: Range(
        low=0.48,
        mid=0.66,
        high=0.72,
        source="H800: 134 to 138 of 200 GB/s (DeepEP docs/legacy.md); H20: 295 of 450 (DeepEP#16); B200: 562 to 648 of "
        "900 with V2 (README), 432 with V1 and 24 SMs (docs/README_Hybrid-EP.md)",
    ),
    Dispatcher.HYBRIDEP: Range(
        low=0.46,
        mid=0.52,
        high=0.71,
        source="B200: 469 of 900 GB/s by torch API, 643 the kernel alone; GB200: 414 to 481 "
        "(docs/README_Hybrid-EP.md). Measured on NVLink 5 only: a guess on others",
    ),
}
"""The share of NVLink's peak that dispatch inside a node reaches."""
