"""The execution of one attached MoE layer: logical to physical routing, replicas beside home experts, realised load."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relibra.agent.cells.cells import SlotTable, StepCells
from relibra.agent.cells.look_ahead import LookAhead
from relibra.agent.cells.micro_batch import MicroBatch, current
from relibra.agent.cells.pass_order import Moment
from relibra.agent.cells.replay import LayerRouting
from relibra.agent.cells.replicated_cell import ReplicatedCell
from relibra.agent.cells.shapes_ahead import CellShapes
from relibra.agent.cells.visit import Passage, ReplicaContext, Visit
from relibra.agent.experts import Dispatched, Experts, ExpertsForward
from relibra.errors import RelibraError
from relibra.kernels import quota_remap


class LayerExecution:
    """Executes the cells of one layer.

    Args:
        index: of the layer among the MoE layers of the whole model.
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
        self._context, self._owner, self._cells = context, owner, cells
        self._has_routing, self._check_weights, self._note_forward = has_routing, check_weights, note_forward
        self._reduces_early = reduces_early
        self.look_ahead = LookAhead(index, context, experts.num_home_slots)
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
        self.look_ahead.begin(micro_batch)
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
            self.look_ahead.note_choice(micro_batch, routing_map_TE)
            table = micro_batch.cells.table(micro_batch.index, self.index)
        self._asked = None
        if table is None:
            return probs_TE, routing_map_TE
        share_P = table.share_P
        if share_P is None:
            assert micro_batch is not None
            share_P = micro_batch.share_P[self.index]
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
            order=self._context.order,
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

    def shapes(self) -> CellShapes | None:
        """Return what ranks exchange in the present cell, after `remap`; None if its dispatcher finds it out."""
        micro_batch = current(self._owner)
        return None if micro_batch is None else micro_batch.shapes.get(self.index)

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
