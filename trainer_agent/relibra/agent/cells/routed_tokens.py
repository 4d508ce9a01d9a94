"""How a rank's routers routed its own tokens in one phase, counted on the device and compared with the plan at its end.

M micro-batches, L layers of the whole model, E experts, T tokens of this rank, B buckets of experts.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relibra.planning.routing_check import RoutingCheck, check_routed
from relibra.planning.source_load import folded

HELD_BYTES = 1 << 24
"""The most memory of routing maps that wait to be counted. As many again are needed for a moment to count them."""


class RoutedTokens:
    """Counts the experts of this rank's tokens in every cell.

    The routing maps of several cells are counted together, in two operations, so that a cell alone costs none.

    Args:
        planned_MLB: the token copies that the plan expects from this rank, by bucket of experts. With expert tensor
            parallelism, a plan counts the ranks that hold the parts of the same experts as one.
    """

    def __init__(self, planned_MLB: NDArray[np.int64]) -> None:
        self._planned_MLB = planned_MLB
        self._waiting: dict[tuple[int, int], Tensor] = {}
        self._waiting_bytes = 0
        self._counted: list[tuple[Sequence[tuple[int, int]], Tensor]] = []
        """(micro-batch, layer) of some cells, and their counts, int32 `[C, E]`."""

    def record(self, micro_batch: int, layer: int, routing_map_TE: Tensor) -> None:
        """Count one cell, now or later, without waiting for the device. A recomputation counts the same again.

        Nobody may write into the map any more.
        """
        self._waiting[micro_batch, layer] = routing_map_TE
        self._waiting_bytes += routing_map_TE.nbytes
        if self._waiting_bytes >= HELD_BYTES:
            self._count()

    def counted(self) -> NDArray[np.int64]:
        """Read the counts from the device: token copies by bucket, int64 `[M, L, B]`, and -1 in cells that did not run.

        M is that of the last micro-batch that ran.
        """
        self._count()
        ran = [cell for cells, _ in self._counted for cell in cells]
        num_micro_batches = max((micro_batch for micro_batch, _ in ran), default=-1) + 1
        counted_MLB = np.full((num_micro_batches, *self._planned_MLB.shape[1:]), -1, dtype=np.int64)
        if ran:
            counts_CE = torch.cat([each for _, each in self._counted]).cpu().numpy()
            micro_batch_C, layer_C = np.array(ran).T
            counted_MLB[micro_batch_C, layer_C] = folded(counts_CE, self._planned_MLB.shape[-1])
        return counted_MLB

    def check(self, counted_MLB: NDArray[np.int64]) -> RoutingCheck:
        """Compare the cells that ran, counted as by `counted`, with the plan."""
        return check_routed(self._planned_MLB, counted_MLB, counted_MLB.min(axis=-1) >= 0)

    def _count(self) -> None:
        """Count the maps that wait, those of one shape together."""
        by_shape: dict[torch.Size, dict[tuple[int, int], Tensor]] = {}
        for cell, routing_map_TE in self._waiting.items():
            by_shape.setdefault(routing_map_TE.shape, {})[cell] = routing_map_TE
        self._waiting, self._waiting_bytes = {}, 0
        for maps in by_shape.values():
            self._counted.append((list(maps), torch.stack(list(maps.values())).sum(dim=1, dtype=torch.int32)))
