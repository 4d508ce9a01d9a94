"""How a rank's routers routed its own tokens in one phase, counted on the device and compared with the plan at its end.

M micro-batches, L layers of the whole model, E experts, T tokens of this rank, B buckets of experts.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relibra.planning.routing_check import RoutingCheck, check_routed
from relibra.planning.source_load import folded


class RoutedTokens:
    """Counts the experts of this rank's tokens in every cell.

    Args:
        planned_MLB: the token copies that the plan expects from this rank, by bucket of experts. With expert tensor
            parallelism, a plan counts the ranks that hold the parts of the same experts as one.
    """

    def __init__(self, planned_MLB: NDArray[np.int64]) -> None:
        self._planned_MLB = planned_MLB
        self._counts: dict[tuple[int, int], Tensor] = {}

    def record(self, micro_batch: int, layer: int, routing_map_TE: Tensor) -> None:
        """Count one cell, without waiting for the device. A recomputation counts the same again."""
        self._counts[micro_batch, layer] = routing_map_TE.sum(dim=0, dtype=torch.int32)

    def counted(self) -> NDArray[np.int64]:
        """Read the counts from the device: token copies by bucket, int64 `[M, L, B]`, and -1 in cells that did not run.

        M is that of the last micro-batch that ran.
        """
        num_micro_batches = max((micro_batch for micro_batch, _ in self._counts), default=-1) + 1
        counted_MLB = np.full((num_micro_batches, *self._planned_MLB.shape[1:]), -1, dtype=np.int64)
        if self._counts:
            counts_CE = torch.stack(list(self._counts.values())).cpu().numpy()
            micro_batch_C, layer_C = np.array(list(self._counts)).T
            counted_MLB[micro_batch_C, layer_C] = folded(counts_CE, self._planned_MLB.shape[-1])
        return counted_MLB

    def check(self, counted_MLB: NDArray[np.int64]) -> RoutingCheck:
        """Compare the cells that ran, counted as by `counted`, with the plan."""
        return check_routed(self._planned_MLB, counted_MLB, counted_MLB.min(axis=-1) >= 0)
