"""The execution of one attached MoE layer: logical to physical routing, replicas beside home experts, realised load."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from relibra.agent.cells.cells import SlotTable, StepCells
from relibra.agent.cells.fetch import Moment, Use
from relibra.agent.cells.micro_batch import MicroBatch
from relibra.agent.cells.replay import LayerRouting
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
        active: returns the cells of the open step, and the micro-batch that runs now, if any.
        has_routing: returns whether the caller has set routing in the open phase.
        logical_experts: returns the logical expert that is in every home slot of a layer now.
        check_weights: raises if the weights of a layer were written behind the agent's back.
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
        active: Callable[[], tuple[StepCells, MicroBatch | None]],
        has_routing: Callable[[], bool],
        logical_experts: Callable[[int], Sequence[int]],
        check_weights: Callable[[int], None],
        note_forward: Callable[[], None],
    ) -> None:
        self.index, self.experts, self._logical_experts = index, experts, logical_experts
        self._chunk, self._context, self._active, self._has_routing = chunk, context, active, has_routing
        self._check_weights, self._note_forward = check_weights, note_forward
        self._reduces_early = reduces_early
        self._visit: Visit | Passage | None = None
        self._asked: LayerRouting | None = None
        """The routing of the present cell that its router has asked for, on the device."""

    def logical_experts(self) -> Sequence[int]:
        """Return the logical expert that is in every home slot now."""
        return self._logical_experts(self.index)

    def routing(self) -> LayerRouting | None:
        """Return the routing that the caller set for the micro-batch that runs now, if any."""
        _, micro_batch = self._active()
        if micro_batch is None or micro_batch.given_experts is None:
            return None
        self._asked = micro_batch.given_experts.of(self.index)
        return self._asked

    def enter(self) -> None:
        """Begin the cell where the transformer layer begins. Without this call, `remap` begins it."""
        _, micro_batch = self._active()
        if micro_batch is not None:
            self._visit = self._visit_of(micro_batch)

    def remap(
        self, probs_TE: Tensor, routing_map_TE: Tensor, *, training: bool, drops_tokens: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the physical probabilities and routing map, `[T, P]` each. P is E in a cell without replicas.

        A router that drops tokens (`drops_tokens`) leaves fewer copies than the plan knows of, so these are not
        compared with the plan.

        Raises:
            RelibraError: a training forward outside a micro-batch while the step has replicas or routing, or a forward
                without gradients over weights that were written behind the agent's back.
        """
        _, micro_batch = self._active()
        self._note_forward()
        if not torch.is_grad_enabled():
            self._check_weights(self.index)
        self._visit = self._visit_of(micro_batch) if micro_batch is not None else None
        asked, self._asked = self._asked, None
        if micro_batch is not None and micro_batch.given_experts is not None:
            if asked is None:
                micro_batch.given.note_not_asked(self.index)
            else:
                micro_batch.given.compare(self.index, asked, routing_map_TE, drops_tokens=drops_tokens)
        if micro_batch is not None and micro_batch.routed is not None and not drops_tokens:
            micro_batch.routed.record(micro_batch.index, self.index, routing_map_TE)
        table = self._table(training)
        if table is None:
            return probs_TE, routing_map_TE
        share_P = table.tokens(routing_map_TE)
        physical: tuple[Tensor, Tensor] = quota_remap(probs_TE, routing_map_TE, table.slot_expert_P, share_P)
        return physical

    def compute(
        self,
        forward: ExpertsForward,
        tokens: Tensor,
        tokens_per_slot: Tensor,
        probs: Tensor,
        *,
        is_padded: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the experts, in place of the forward of the experts module.

        With `is_padded`, some tokens only fill up their slots. They have probability 0 and do not count as load.
        """
        _, micro_batch = self._active()
        if micro_batch is not None and micro_batch.realised is not None:
            num_tokens = probs.count_nonzero() if is_padded else tokens_per_slot.sum()
            micro_batch.realised.record(micro_batch.index, self.index, num_tokens)
        visit, self._visit = self._visit, None
        if isinstance(visit, Passage):
            tokens = visit.begin(tokens)
        if not isinstance(visit, Visit):
            return forward(tokens, tokens_per_slot[: self.experts.num_home_slots], probs)
        tokens, probs, replicas = visit.begin(tokens, probs)
        outputs = self.experts.run(forward, Dispatched(tokens, tokens_per_slot, probs), replicas)
        return visit.end(outputs, replicas), None

    def _visit_of(self, micro_batch: MicroBatch) -> Visit | Passage | None:
        """Return the visit of the present cell, if it has replicas: the entered one if it fits, else a new one."""
        cells, recorded = micro_batch.cells, torch.is_grad_enabled()
        has_replicas = bool(cells.copies(micro_batch.index, self.index))
        must_pass = recorded and self._reduces_early and cells.is_replicated_anywhere(micro_batch.index, self.index)
        if not has_replicas and not must_pass:
            return None
        moment = Moment.INFERENCE
        if micro_batch.is_checkpointed:
            moment = Moment.RECOMPUTATION if recorded else Moment.FORWARD
        elif recorded:
            moment = Moment.FORWARD
        use = Use(cells, micro_batch.index, self.index, in_backward=moment is Moment.RECOMPUTATION)
        if self._visit is not None and (self._visit.use, self._visit.is_recorded) == (use, recorded):
            return self._visit
        if not has_replicas:
            return Passage(use, self.experts)
        layers = cells.replicated(micro_batch.index, self._chunk)
        return Visit(self._context, use, moment, layers, self.experts, reduces_early=self._reduces_early)

    def _table(self, training: bool) -> SlotTable | None:
        cells, micro_batch = self._active()
        if micro_batch is not None:
            return micro_batch.cells.table(micro_batch.index, self.index)
        missed = "replicas" if cells.has_replicas else "routing" if self._has_routing() else None
        if training and missed is not None:
            raise RelibraError(
                f"MoE layer {self.index} ran in training mode outside `agent.micro_batch(i)` while the step has "
                f"{missed} by micro-batch. Without the index, gradients could silently be wrong: run the forward "
                "inside `with agent.micro_batch(i):`, or validate in eval mode"
            )
        return cells.table(None, self.index)
