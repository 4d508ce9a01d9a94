"""A cell with replicas, as one layer of a rank runs it: all that follows from the plan alone, found once per step."""

from collections.abc import Sequence
from functools import cached_property

from torch import Tensor, nn

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.pass_order import Moment, PassOrder, Use
from relibra.agent.experts import Experts, require_gradients


class ReplicatedCell:
    """A cell of which some node has replicas. The passes over the cell share the object.

    Args:
        cells: the step's cells.
        micro_batch: the index of the micro-batch.
        layer: the index of the layer.
        order: of the passes of this rank.
        experts: the experts of the layer.
        rank: this rank within its node.
        reduces_early: whether DDP reduces gradients during the backward, and other ranks hold the same experts.
    """

    def __init__(
        self,
        cells: StepCells,
        micro_batch: int,
        layer: int,
        *,
        order: PassOrder,
        experts: Experts,
        rank: int,
        reduces_early: bool,
    ) -> None:
        self.experts = experts
        self.use = order.use(cells, micro_batch, layer)
        """The forward over the cell."""
        self.use_in_backward = self.use._replace(in_backward=True)
        """Its backward, or a recomputation within the backward."""
        self.copies = self.use.copies
        """The replicas on ranks of this node; none if only other nodes or EP groups have replicas."""
        self.num_own = sum(copy.destination_rank == rank for copy in self.copies)
        """The number of replicas on this rank."""
        one = experts.parameters[0]
        self.trained = [tensor for tensor, parameter in enumerate(one) if parameter.requires_grad]
        """The indices of the tensors of an expert that require gradients."""
        self.num_tensors = len(one)
        """The number of tensors of an expert."""
        self.frozen = [
            slot * len(one) + tensor
            for slot in range(self.num_own)
            for tensor, parameter in enumerate(one)
            if not parameter.requires_grad
        ]
        """The indices of the tensors of the replicas on this rank that require no gradients."""
        self._rank, self._reduces_early, self._order = rank, reduces_early, order
        self._following: dict[Moment, Use | None] = {}

    def following(self, use: Use, moment: Moment) -> Use | None:
        """Return the guess of the use after `use`, one of this cell's, which is the same whenever the moment is."""
        if moment not in self._following:
            self._following[moment] = self._order.next_use(use, moment)
        return self._following[moment]

    @cached_property
    def accepting(self) -> Sequence[nn.Parameter]:
        """The parameters that are inputs of `accept`, found in the first pass that has a backward."""
        home = self.experts.parameters
        if self._reduces_early:
            slots = list(range(len(home)))
        else:
            slots = sorted({copy.source_slot for copy in self.copies if copy.source_rank == self._rank})
        # Matrices of an adapter belong to several experts.
        return list(dict.fromkeys(parameter for slot in slots for parameter in require_gradients(home[slot])))

    @cached_property
    def anchor(self) -> Tensor:
        """An input of `accept`, because all ranks of the node need the same graph, even with nothing to accept."""
        return self.experts.parameters[0][0].new_empty(0).requires_grad_()
