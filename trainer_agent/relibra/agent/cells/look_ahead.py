"""The agent's knowledge of a cell before its router runs: how tokens are split over copies, and what ranks exchange.

The first layer of a forward of which anything is told looks ahead for all layers of its chunk.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from relibra.agent.cells.counts_ahead import CellAhead, cells_ahead
from relibra.agent.cells.micro_batch import MicroBatch
from relibra.agent.cells.shapes_ahead import DispatchRanks, ShapesAhead, slot_counts
from relibra.agent.cells.visit import ReplicaContext


class LookAhead:
    """Looks ahead for one layer.

    Args:
        index: of the layer among the MoE layers of the whole model.
        context: shared by all layers of this rank.
        num_home_slots: of a rank.
    """

    def __init__(self, index: int, context: ReplicaContext, num_home_slots: int) -> None:
        self._index, self._context, self._num_home_slots = index, context, num_home_slots
        self._chunk = context.order.layers_with(index)
        self.dispatch_ranks: DispatchRanks | None = None
        """The ranks that must know the shapes of the layer's dispatchers; None if these cannot take them."""

    def begin(self, micro_batch: MicroBatch) -> None:
        """Count what a replay tells of the cells of a forward, before the first of these cells runs.

        If the ranks agreed to gather ahead, this is collective, whether a replay tells on this rank or not.
        """
        cells, index = micro_batch.cells, micro_batch.index
        tells_shapes = self._tells_shapes(micro_batch)
        is_of_use = tells_shapes or cells.is_split(index, self._index)
        if not is_of_use or self._index in micro_batch.ahead or self._is_again(micro_batch):
            return
        split = [layer for layer in self._chunk if cells.is_split(index, layer)]
        layers = [*split, *(layer for layer in self._chunk if tells_shapes and layer not in split)]
        gather = self._context.split.gather_ahead if micro_batch.counts_ahead.is_agreed else None
        expert_CTK = [self._known_experts(micro_batch, layer) for layer in layers]
        ahead = cells_ahead(expert_CTK, len(split), cells.num_experts, cells.device, gather)
        if tells_shapes:
            ahead = self._with_shapes(micro_batch, layers, ahead)
        micro_batch.ahead.update(zip(layers, ahead, strict=True))

    def note_choice(self, micro_batch: MicroBatch, routing_map_TE: Tensor) -> None:
        """Note what the router of a forward chose, and with it how tokens are split and what ranks exchange.

        Collective over the EP group in a cell with replicas. A recomputation uses what its forward knew.
        """
        is_split = micro_batch.cells.is_split(micro_batch.index, self._index)
        if not (is_split or self._tells_shapes(micro_batch)) or self._is_again(micro_batch):
            return
        self.begin(micro_batch)
        ahead = micro_batch.ahead.pop(self._index)
        counts_E = routing_map_TE.sum(dim=0, dtype=torch.int32)
        if is_split or ahead.counts_E is not None:  # else nothing depends on whether a replay told
            micro_batch.counts_ahead.note(ahead.counts_E, counts_E)
        if is_split:
            share_P = ahead.share_P
            if share_P is None:
                share_P = self._share_P(micro_batch, self._index, ahead, counts_E)
            micro_batch.share_P[self._index] = share_P
        if ahead.shapes is not None:
            under_way, place = ahead.shapes
            shapes = under_way.of(place, None if is_split else self._num_home_slots)
            micro_batch.shapes[self._index] = shapes
            if shapes is not None:
                assert ahead.counts_E is not None
                micro_batch.counts_ahead.rely(self._index, ahead.counts_E, counts_E)

    def _share_P(self, micro_batch: MicroBatch, layer: int, ahead: CellAhead, counts_E: Tensor | None) -> Tensor:
        """Return how this rank's tokens are split over the slots of a cell; without `counts_E`, as gathered ahead."""
        split, table = self._context.split, micro_batch.cells.table(micro_batch.index, layer)
        assert table is not None
        if ahead.gathered is not None:
            gathered, place = ahead.gathered
            return split.share_P(table, gathered.of(place))
        assert counts_E is not None
        return split.share_P(table, split.gather(counts_E))

    def _with_shapes(
        self, micro_batch: MicroBatch, layers: Sequence[int], ahead: Sequence[CellAhead]
    ) -> list[CellAhead]:
        """Collective: return what is known of the cells of these layers, with what ranks will exchange in them."""
        cells, index = micro_batch.cells, micro_batch.index
        slots, shares, counts, left = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
        none_E = torch.zeros(cells.num_experts, dtype=torch.int32, device=cells.device)
        for layer, cell in zip(layers, ahead, strict=True):
            slot_expert_P, home_share_P = cells.all_slots(index, layer)
            is_split = cells.is_split(index, layer)
            slots.append(slot_expert_P)
            shares.append(self._share_P(micro_batch, layer, cell, None) if is_split else home_share_P)
            counts.append(none_E if cell.counts_E is None else cell.counts_E)
            left.append(none_E[0] + 1 if cell.num_left is None else cell.num_left)
        counts_CP = slot_counts(torch.stack(counts), torch.stack(slots), torch.stack(shares))
        is_exact_C = (torch.stack(left) == 0) & micro_batch.counts_ahead.was_exact
        assert self.dispatch_ranks is not None
        shapes = ShapesAhead(counts_CP, is_exact_C, self.dispatch_ranks)
        return [
            cell._replace(share_P=share_P, shapes=(shapes, place))
            for place, (cell, share_P) in enumerate(zip(ahead, shares, strict=True))
        ]

    def _tells_shapes(self, micro_batch: MicroBatch) -> bool:
        """Return whether ranks tell each other what they will exchange, the same on all ranks."""
        is_agreed = micro_batch.counts_ahead.is_agreed and micro_batch.cells.has_replicas
        return is_agreed and self.dispatch_ranks is not None

    def _known_experts(self, micro_batch: MicroBatch, layer: int) -> Tensor | None:
        """Return the experts `[T, K]` that the caller or a replay has set for a layer, -1 where its router decides."""
        if (given := micro_batch.given_experts) is not None:
            return given.routed_LTK[layer]
        replayed = self._context.replayed.get(layer)
        return None if replayed is None else replayed()

    def _is_again(self, micro_batch: MicroBatch) -> bool:
        """Return whether a recomputation runs, which uses the split and the shapes of its forward."""
        is_known = self._index in micro_batch.share_P or self._index in micro_batch.shapes
        return micro_batch.is_checkpointed and torch.is_grad_enabled() and is_known
