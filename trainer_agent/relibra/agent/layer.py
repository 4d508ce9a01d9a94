"""What happens inside one attached MoE layer: logical to physical routing, replicas beside home experts, a count."""

from collections.abc import Callable, Sequence

from torch import Tensor

from relibra.agent.cells import SlotTable, StepCells
from relibra.agent.experts import Experts, ExpertsForward
from relibra.agent.micro_batch import MicroBatch
from relibra.agent.replicate import NodeExchange, fetch_replicas
from relibra.errors import RelibraError
from relibra.kernels import quota_remap


class LayerExecution:
    """Executes the cells of one layer.

    Args:
        index: of the layer among the MoE layers of the whole model.
        experts: its experts on this rank.
        exchange: the node's group.
        active: returns the cells of the present step, and the micro-batch that runs now, if any.
        logical_experts: returns the logical expert in every home slot, now.
        gathered: returns once the home experts' parameters are complete; a distributed optimizer may gather them late.
    """

    def __init__(
        self,
        *,
        index: int,
        experts: Experts,
        exchange: NodeExchange,
        active: Callable[[], tuple[StepCells, MicroBatch | None]],
        logical_experts: Callable[[], Sequence[int]],
        gathered: Callable[[], None],
    ) -> None:
        self.index, self.experts, self.logical_experts = index, experts, logical_experts
        self._exchange, self._active, self._gathered = exchange, active, gathered

    def routing(self) -> Tensor | None:
        """Return the experts `[T, K]` given for the micro-batch that runs now, if any were."""
        _, micro_batch = self._active()
        if micro_batch is None or micro_batch.routed_LTK is None:
            return None
        return micro_batch.routed_LTK[self.index]

    def remap(self, probs_TE: Tensor, routing_map_TE: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        """Return physical probabilities and routing map `[T, P]`.

        Raises:
            RelibraError: a training forward outside a micro-batch while the step has replicas or routing.
        """
        table = self._table(training)
        return quota_remap(probs_TE, routing_map_TE, table.slot_expert_P, table.share_P)

    def compute(
        self, forward: ExpertsForward, tokens: Tensor, tokens_per_slot: Tensor, probs: Tensor, *, training: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Stand in for the forward of the experts module."""
        num_tokens = [int(num) for num in tokens_per_slot.tolist()]
        _, micro_batch = self._active()
        if micro_batch is not None and micro_batch.realised is not None:
            micro_batch.realised.record(micro_batch.index, self.index, sum(num_tokens))
        transfer = self._table(training).transfer
        if transfer is None:
            return forward(tokens, tokens_per_slot[: self.experts.num_home_slots], probs)
        self._gathered()
        tokens, probs, replicas = fetch_replicas(self._exchange, transfer, self.experts.parameters, tokens, probs)
        return self.experts.run(forward, tokens, num_tokens, probs, replicas), None

    def _table(self, training: bool) -> SlotTable:
        cells, micro_batch = self._active()
        if micro_batch is not None:
            return micro_batch.cells.table(micro_batch.index, self.index)
        if training and cells.has_replicas:
            raise RelibraError(
                f"MoE layer {self.index} ran in training mode outside `agent.micro_batch(i)` while the step has "
                "replicas: which ones are meant depends on the micro-batch, and a wrong guess gives wrong gradients "
                "silently; run the forward inside `with agent.micro_batch(i):`, or validate in eval mode"
            )
        return cells.table(None, self.index)
