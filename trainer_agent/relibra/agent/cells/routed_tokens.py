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
        planned_MLB: the token copies that the plan expects from this rank, by bucket of experts.
    """

    def __init__(self, planned_MLB: NDArray[np.int64]) -> None:
        self._planned_MLB = planned_MLB
        self._counts: dict[tuple[int, int], Tensor] = {}

    def record(self, micro_batch: int, layer: int, routing_map_TE: Tensor) -> None:
        """Count one cell, without waiting for the device. A recomputation counts the same again."""
        self._counts[micro_batch, layer] = routing_map_TE.sum(dim=0, dtype=torch.int32)

    def check(self) -> RoutingCheck:
        """Read the counts from the device, and compare the cells that ran with the plan."""
        if not self._counts:
            return RoutingCheck()
        num_micro_batches = max(micro_batch for micro_batch, _ in self._counts) + 1
        _, num_layers, num_buckets = self._planned_MLB.shape
        counts_CE = torch.stack(list(self._counts.values())).cpu().numpy()
        micro_batch_C, layer_C = np.array(list(self._counts)).T
        realised_MLB = np.zeros((num_micro_batches, num_layers, num_buckets), dtype=np.int64)
        ran_ML = np.zeros((num_micro_batches, num_layers), dtype=np.bool_)
        realised_MLB[micro_batch_C, layer_C] = folded(counts_CE, num_buckets)
        ran_ML[micro_batch_C, layer_C] = True
        return check_routed(self._planned_MLB, realised_MLB, ran_ML)
