"""When the weights of a cell's replicas are wanted, and which ones are wanted next.

Pure, and equal on all ranks of a node: they guess alike, so that what one fetches in advance another one sends.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from relibra.agent.cells.cells import StepCells
from relibra.agent.transport import Copy


class Moment(Enum):
    """What a layer is doing with a cell."""

    INFERENCE = "a forward without a backward"
    FORWARD = "a forward whose backward comes later"
    RECOMPUTATION = "a forward again, within the backward"
    BACKWARD = "a backward"


class Use(NamedTuple):
    """The replicas of one cell in one of the two passes over its micro-batch.

    Weights may change between two forwards of a micro-batch, but not between its forward and its backward.
    """

    cells: StepCells
    micro_batch: int
    layer: int
    in_backward: bool

    @property
    def copies(self) -> tuple[Copy, ...]:
        """What travels for it."""
        return self.cells.copies(self.micro_batch, self.layer)


def next_use(use: Use, moment: Moment, layers: Sequence[int]) -> Use | None:
    """Guess the use after this one, of the same micro-batch; None where there is none.

    A schedule may well do something else, such as another micro-batch of a pipeline. Then the guess is dropped.

    Args:
        use: the present one.
        moment: what the layer is doing.
        layers: of the model chunk, those with replicas in this micro-batch, ascending; the present one among them.
    """
    place = layers.index(use.layer)
    if moment is Moment.RECOMPUTATION:
        return use  # its backward
    if moment is Moment.BACKWARD:
        return use._replace(layer=layers[place - 1]) if place > 0 else None
    if place + 1 < len(layers):
        return use._replace(layer=layers[place + 1])
    return use._replace(in_backward=True) if moment is Moment.FORWARD else None
