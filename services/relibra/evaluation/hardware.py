"""Presets of machines, and what an expert costs on them.

Peak figures come from the vendors' data sheets, and the shares of peak from published measurements. `relibra calibrate`
replaces computed expert times by a measured curve.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.evaluation.model_shape import ModelShape
from relibra.planning.cost import CostModel

_GEMM_SHARE = 0.40
"""400 of 989 TFLOP/s: grouped bf16 matrix multiplications and attention in MoE training on H100 (DeepGEMM and Megatron
report 350 to 600 for the larger ones, forward and backward together)."""
_HBM_SHARE = 0.80
_NVLINK_SHARE = 0.80
"""UltraEP measures 353 to 367 of 450 GB/s a direction."""
_NETWORK_SHARE = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The usable rates of one GPU and of its share of the networks."""

    name: str
    flop_per_us: float
    hbm_bytes_per_us: float
    intra_node_bytes_per_us: float
    """The rate of one direction."""
    inter_node_bytes_per_us: float
    """The rate of one direction of one GPU's adapter."""
    source: str
    measured: CostModel | None = None
    """The measured times of one expert; without them, times are computed from the peaks."""

    def cost_of(self, model: ModelShape) -> CostModel:
        """Return the cost model of one expert's forward pass: it reads its weights once and computes every token."""
        if self.measured is not None:
            return self.measured
        read_us = model.expert_weight_size_bytes / self.hbm_bytes_per_us
        us_per_token = 2 * model.expert_parameters / self.flop_per_us
        return CostModel(
            expert_tokens=(0.0, 1024.0),
            expert_us=(read_us, read_us + 1024 * us_per_token),
            token_size_bytes=model.token_size_bytes,
            intra_node_bytes_per_us=self.intra_node_bytes_per_us,
            inter_node_bytes_per_us=self.inter_node_bytes_per_us,
        )

    @staticmethod
    def expert_us(cost: CostModel, tokens_Q: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return `CostModel.compute_us` for many numbers of tokens at once."""
        x, y = np.array(cost.expert_tokens), np.array(cost.expert_us)
        inside_Q = np.interp(tokens_Q, x, y)
        beyond_Q = y[-1] + (tokens_Q - x[-1]) * cost.us_per_token
        us_Q: NDArray[np.float64] = np.where(tokens_Q > x[-1], beyond_Q, inside_Q)
        return np.where(tokens_Q > 0, np.maximum(us_Q, 0.0), 0.0)


def _of_peaks(name: str, tflops: float, hbm: float, nvlink: float, network: float, source: str) -> Hardware:
    """Return hardware from its peaks in TFLOP/s and GB/s; NVLink and network count one direction of one GPU."""
    return Hardware(
        name=name,
        flop_per_us=_GEMM_SHARE * tflops * 1e6,
        hbm_bytes_per_us=_HBM_SHARE * hbm * 1e3,
        intra_node_bytes_per_us=_NVLINK_SHARE * nvlink * 1e3,
        inter_node_bytes_per_us=_NETWORK_SHARE * network * 1e3,
        source=source,
    )


HARDWARE = {
    each.name: each
    for each in (
        _of_peaks("h100", 989, 3350, 450, 50, "H100 SXM5 data sheet; 8 x 400 Gb/s adapters a node"),
        _of_peaks("h200", 989, 4800, 450, 50, "H200 SXM data sheet; 8 x 400 Gb/s adapters a node"),
        _of_peaks("h800", 989, 3350, 200, 50, "H800: as H100 with NVLink of 400 GB/s; 8 x 400 Gb/s adapters a node"),
        _of_peaks("a100", 312, 2039, 300, 25, "A100 SXM4 80 GB data sheet; 8 x 200 Gb/s adapters a node"),
    )
}
"""Presets of nodes with 8 GPUs, by name."""


def hardware_of(name: str) -> Hardware:
    """Return the preset of this name.

    Raises:
        InvalidInput: there is no preset of this name.
    """
    if name not in HARDWARE:
        raise InvalidInput.of("hardware", expected=f"one of {', '.join(HARDWARE)}", got=name)
    return HARDWARE[name]
