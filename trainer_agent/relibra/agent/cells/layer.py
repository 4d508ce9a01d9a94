"""The execution of one attached MoE layer: logical to physical routing, replicas beside home experts, realised load."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relibra.agent.cells.cells import SlotTable, StepCells
from relibra.agent.cells.counts_ahead import cells_ahead
from relibra.agent.cells.fetch import Moment
from relibra.agent.cells.micro_batch import MicroBatch, current
from relibra.agent.cells.replay import LayerRouting
from relibra.agent.cells.replicated_cell import ReplicatedCell
from relibra.agent.cells.visit import Passage, ReplicaContext, Visit
from relibra.agent.experts import Dispatched, Experts, ExpertsForward
from relibra.errors import RelibraError
from relibra.kernels import quota_remap


class LayerExecution:
    """Executes the cells of one layer.

    Args:
        index: of the layer among the MoE layers of the whole model.
        chunk: the indices of all layers of the same model chunk, ascending.
        experts: the layer's experts on this rank.
        context: shared by all layers of this rank.
        reduces_early: whether DDP reduces gradients during the backward, and other ranks hold the same experts.
        owner: opens the micro-batches of this layer.
        cells: returns the cells of the open step.
        has_routing: returns whether the caller has set routing in the open phase.
        logical_experts: returns the logical expert that is in every home slot of a layer now.
        check_weights: raises if the weights of a layer were written behind the agent's back; also gets whether the
            forward belongs to a phase.
        note_forward: called in every forward.
    """

    def __init__(
        self,
        *,
        index: int,
        chunk: Sequence[int],
        experts: Experts,
        context: ReplicaContext,
        reduces_early: bool,
        owner: object,
        cells: Callable[[], StepCells],
        has_routing: Callable[[], bool],
        logical_experts: Callable[[int], Sequence[int]],
        check_weights: Callable[[int, bool], None],
        note_forward: Callable[[], None],
    ) -> None:
        self.index, self.experts, self._logical_experts = index, experts, logical_experts
        self._chunk, self._context, self._owner, self._cells = chunk, context, owner, cells
        self._has_routing, self._check_weights, self._note_forward = has_routing, check_weights, note_forward
        self._reduces_early = reduces_early
        self._visit: Visit | Passage | None = None
        self._asked: LayerRouting | None = None
        """The routing of the present cell that its router has asked for, on the device."""
        self._known: dict[int, ReplicatedCell | None] = {}
        """By micro-batch of `_known_cells`, the cell of this layer; None if no node has replicas of it."""
        self._known_cells: StepCells | None = None

    def logical_experts(self) -> Sequence[int]:
        """Return the logical expert that is in every home slot now."""
        return self._logical_experts(self.index)

    def routing(self) -> LayerRouting | None:
        """Return the routing that the caller set for the micro-batch that runs now, if any."""
        micro_batch = current(self._owner)
        if micro_batch is None or micro_batch.given_experts is None:
            return None
        self._asked = micro_batch.given_experts.of(self.index)
        return self._asked

    def listen(self, replayed: Callable[[], Tensor | None]) -> None:
        """Set the function that returns what a replay has set for the router's next forward, as `replayed` does."""
        self._context.replayed[self.index] = replayed

    def enter(self) -> None:
        """Begin the cell where the transformer layer begins. Without this call, `remap` begins it."""
        micro_batch = current(self._owner)
        if micro_batch is None:
            return
        self._look_ahead(micro_batch)
        if (cell := self._cell(micro_batch)) is not None:
            self._visit = self._visit_of(cell, micro_batch)

    def remap(
        self, probs_TE: Tensor, routing_map_TE: Tensor, *, training: bool, drops_tokens: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the physical probabilities and routing map, `[T, P]` each. P is E in a cell without replicas.

        Collective over the EP group in a cell with replicas. A router may drop tokens (`drops_tokens`) that it was
        given. Nobody may write into the logical routing map afterwards.

        Raises:
            RelibraError: a training forward outside a micro-batch while the step has replicas or routing, or a forward
                without gradients over weights that were written behind the agent's back.
        """
        micro_batch = current(self._owner)
        self._note_forward()
        if not torch.is_grad_enabled():
            self._check_weights(self.index, micro_batch is not None)
        if micro_batch is None:
            self._visit, table = None, self._table_outside(training)
        else:
            cell = self._cell(micro_batch)
            self._visit = None if cell is None else self._visit_of(cell, micro_batch)
            self._compare(micro_batch, routing_map_TE, drops_tokens)
            table = micro_batch.cells.table(micro_batch.index, self.index)
        self._asked = None
        if table is None:
            return probs_TE, routing_map_TE
        share_P = self._share_P(micro_batch, table, routing_map_TE)
        physical: tuple[Tensor, Tensor] = quota_remap(
            probs_TE, routing_map_TE, table.slot_expert_P, share_P, has_valid_slots=True
        )
        return physical

    def compute(
        self,
        forward: ExpertsForward,
        tokens: Tensor,
        tokens_per_slot: Tensor,
        probs: Tensor,
        *,
        is_padded: bool = False,
        is_lent: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the experts, in place of the forward of the experts module.

        With `is_padded`, some tokens only fill up their slots. They have probability 0 and do not count as load. With
        `is_lent`, the dispatcher may write into `tokens_per_slot` again.
        """
        micro_batch = current(self._owner)
        if micro_batch is not None and micro_batch.realised is not None:
            tokens_P = tokens_per_slot.clone() if is_lent else tokens_per_slot
            num_tokens = probs.count_nonzero() if is_padded else None
            micro_batch.realised.record(micro_batch.index, self.index, tokens_P, micro_batch.cells, num_tokens)
        visit, self._visit = self._visit, None
        if isinstance(visit, Visit):
            tokens, probs, replicas = visit.begin(tokens, probs)
            outputs = self.experts.run(forward, Dispatched(tokens, tokens_per_slot, probs), replicas)
            return visit.end(outputs, replicas), None
        if visit is not None:
            tokens = visit.begin(tokens)
        if tokens_per_slot.shape[0] > self.experts.num_home_slots:  # all replicas of the cell are in other nodes
            tokens_per_slot = tokens_per_slot[: self.experts.num_home_slots]
        return forward(tokens, tokens_per_slot, probs)

    def _cell(self, micro_batch: MicroBatch) -> ReplicatedCell | None:
        """Return the present cell if the layer has to do more than compute its home experts."""
        if micro_batch.cells is not self._known_cells:
            self._known_cells, self._known = micro_batch.cells, {}
        if micro_batch.index not in self._known:
            self._known[micro_batch.index] = self._find_cell(micro_batch.cells, micro_batch.index)
        return self._known[micro_batch.index]

    def _find_cell(self, cells: StepCells, micro_batch: int) -> ReplicatedCell | None:
        must_pass = self._reduces_early and cells.is_replicated_anywhere(micro_batch, self.index)
        if not must_pass and not cells.copies(micro_batch, self.index):
            return None
        return ReplicatedCell(
            cells,
            micro_batch,
            self.index,
            chunk=self._chunk,
            experts=self.experts,
            rank=self._context.transport.rank,
            reduces_early=self._reduces_early,
        )

    def _visit_of(self, cell: ReplicatedCell, micro_batch: MicroBatch) -> Visit | Passage | None:
        """Return the visit of the present cell: the entered one if it fits, else a new one."""
        is_recorded, moment = torch.is_grad_enabled(), Moment.INFERENCE
        if micro_batch.is_checkpointed:
            moment = Moment.RECOMPUTATION if is_recorded else Moment.FORWARD
        elif is_recorded:
            moment = Moment.FORWARD
        use = cell.use_in_backward if moment is Moment.RECOMPUTATION else cell.use
        visit = self._visit
        if visit is not None and visit.use is use and visit.is_recorded is is_recorded:
            return visit
        if cell.copies:
            return Visit(self._context, cell, use, moment)
        return Passage(cell, use) if is_recorded else None

    def _share_P(self, micro_batch: MicroBatch | None, table: SlotTable, routing_map_TE: Tensor) -> Tensor:
        """Return how this rank's tokens are split over the slots; in a recomputation as in its forward."""
        if table.share_P is not None:
            return table.share_P
        assert micro_batch is not None
        if not self._is_again(micro_batch):
            self._look_ahead(micro_batch)
            split, ahead = self._context.split, micro_batch.ahead.pop(self.index)
            counts_E = routing_map_TE.sum(dim=0, dtype=torch.int32)
            micro_batch.counts_ahead.note(ahead.counts_E, counts_E)
            if ahead.gathered is None:
                counts_RE = split.gather(counts_E)
            else:
                gathered, place = ahead.gathered
                counts_RE = gathered.of(place)
            micro_batch.share_P[self.index] = split.share_P(table, counts_RE)
        return micro_batch.share_P[self.index]

    def _look_ahead(self, micro_batch: MicroBatch) -> None:
        """Before the first cell of a forward whose tokens are split, count what a replay tells of all such cells.

        If the ranks agreed to gather ahead, this is collective, whether a replay tells on this rank or not.
        """
        cells, index = micro_batch.cells, micro_batch.index
        if self.index in micro_batch.ahead or not cells.is_split(index, self.index) or self._is_again(micro_batch):
            return
        layers = [layer for layer in self._chunk if cells.is_split(index, layer)]
        gather = self._context.split.gather_ahead if micro_batch.counts_ahead.is_agreed else None
        expert_CTK = [self._known_experts(micro_batch, layer) for layer in layers]
        ahead = cells_ahead(expert_CTK, cells.num_experts, cells.device, gather)
        micro_batch.ahead.update(zip(layers, ahead, strict=True))

    def _known_experts(self, micro_batch: MicroBatch, layer: int) -> Tensor | None:
        """Return the experts `[T, K]` that the caller or a replay has set for a layer, -1 where its router decides."""
        if (given := micro_batch.given_experts) is not None:
            return given.routed_LTK[layer]
        replayed = self._context.replayed.get(layer)
        return None if replayed is None else replayed()

    def _is_again(self, micro_batch: MicroBatch) -> bool:
        """Return whether a recomputation runs, which uses the split of its forward."""
        return micro_batch.is_checkpointed and torch.is_grad_enabled() and self.index in micro_batch.share_P

    def _compare(self, micro_batch: MicroBatch, routing_map_TE: Tensor, drops_tokens: bool) -> None:
        """Compare what the router chose with what the caller gave."""
        if micro_batch.given_experts is None:
            return
        if self._asked is None:
            micro_batch.given.note_not_asked(self.index)
        else:
            micro_batch.given.compare(self.index, self._asked, routing_map_TE, drops_tokens=drops_tokens)

    def _table_outside(self, training: bool) -> SlotTable | None:
        """Return the table of a forward outside every micro-batch."""
        cells = self._cells()
        missed = "replicas" if cells.has_replicas else "routing" if self._has_routing() else None
        if training and missed is not None:
            raise RelibraError(
                f"MoE layer {self.index} ran in training mode outside `agent.micro_batch(i)` while the step has "
                f"{missed} by micro-batch. Without the index, gradients could silently be wrong: run the forward "
                "inside `with agent.micro_batch(i):`, or validate in eval mode"
            )
        return cells.table(None, self.index)
