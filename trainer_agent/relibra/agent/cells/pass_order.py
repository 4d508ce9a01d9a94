"""The order in which a rank uses replicas: the schedules of Megatron, in which a pass is one chunk of one micro-batch.

A guess that a training loop of another order proves wrong costs time: nobody relies on it.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.slots import NUM_SIDES
from relibra.agent.transport import Copy
from relibra.planning.pipeline import passes_of


class Moment(Enum):
    """The kind of pass in which a layer runs a cell."""

    INFERENCE = "a forward without a backward"
    FORWARD = "a forward whose backward comes later"
    RECOMPUTATION = "a forward again, within the backward"
    BACKWARD = "a backward"


class Use(NamedTuple):
    """The use of a cell's replicas in the forward or the backward of its micro-batch."""

    cells: StepCells
    micro_batch: int
    layer: int
    side: int
    """The side of the slots that the replicas fill, in forward and backward."""
    in_backward: bool

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copies that bring its weights."""
        return self.cells.copies(self.micro_batch, self.layer)

    def is_same_cell(self, other: "Use | None") -> bool:
        """Return whether the other use needs the same weights in the same slots."""
        return other is not None and other[:-1] == self[:-1]


class _Pass(NamedTuple):
    micro_batch: int
    chunk: int
    in_backward: bool


class PassOrder:
    """The passes of a rank's pipeline stage, and the order of layers in them.

    Args:
        chunks: the indices of the MoE layers of every model chunk of the stage, ascending.
        stage: the stage, from 0.
        num_stages: the stages of the pipeline.
        sees_optimizer: whether the agent drops weights that were fetched ahead when the optimizer steps. Otherwise no
            forward is guessed from a backward, because an optimizer may step in between.
    """

    def __init__(
        self, chunks: Sequence[Sequence[int]], stage: int = 0, num_stages: int = 1, *, sees_optimizer: bool = True
    ) -> None:
        self._chunks, self._shape, self._sees_optimizer = chunks, (stage, num_stages, len(chunks)), sees_optimizer
        self._chunk_of = {layer: chunk for chunk, layers in enumerate(chunks) for layer in layers}

    def layers_with(self, layer: int) -> Sequence[int]:
        """Return the layers of the chunk that a layer is in, ascending."""
        return self._chunks[self._chunk_of[layer]]

    def use(self, cells: StepCells, micro_batch: int, layer: int, *, in_backward: bool = False) -> Use:
        """Return the use of a cell. Its side is another one than that of the layers and micro-batches beside it."""
        layers = cells.layers_with_replicas(micro_batch, self.layers_with(layer))
        side = (micro_batch + layers.index(layer)) % NUM_SIDES if layer in layers else 0
        return Use(cells, micro_batch, layer, side, in_backward)

    def next_use(self, use: Use, moment: Moment) -> Use | None:
        """Return the use after a use, which has replicas; None if it is the last one of a phase, or cannot be guessed.

        Args:
            use: the present use.
            moment: the kind of pass of the present use.
        """
        if moment is Moment.RECOMPUTATION:
            return use  # its backward
        cells, at = use.cells, _Pass(use.micro_batch, self._chunk_of[use.layer], use.in_backward)
        # More micro-batches than planned use the copies of the plan in turn, see `StepCells`.
        num_planned = cells.num_micro_batches
        num_micro_batches = num_planned * (use.micro_batch // num_planned + 1)
        following = _following(*self._shape, num_micro_batches, trains=moment is not Moment.INFERENCE)
        layers = self._layers(cells, at)
        layers = layers[layers.index(use.layer) + 1 :]
        while not layers:
            if at not in following:
                return None
            at = following[at]
            if use.in_backward and not at.in_backward and not self._sees_optimizer:
                return None
            layers = self._layers(cells, at)
        return self.use(cells, at.micro_batch, layers[0], in_backward=at.in_backward)

    def _layers(self, cells: StepCells, of: _Pass) -> Sequence[int]:
        """Return the layers that have replicas in a pass, in the order of the pass."""
        layers = cells.layers_with_replicas(of.micro_batch, self._chunks[of.chunk])
        return layers[::-1] if of.in_backward else layers


@lru_cache(maxsize=16)
def _following(
    stage: int, num_stages: int, num_chunks: int, num_micro_batches: int, *, trains: bool
) -> Mapping[_Pass, _Pass]:
    """Return the pass after each pass of a phase but the last one."""
    passes = passes_of(stage, num_stages, num_chunks, num_micro_batches)
    of_passes = zip(passes.micro_batch_T.tolist(), passes.chunk_T.tolist(), passes.is_forward_T.tolist(), strict=True)
    return dict(pairwise(_Pass(m, chunk, not is_forward) for m, chunk, is_forward in of_passes if trains or is_forward))
