"""Bring the weights of replicas into the redundant slots, before they are wanted where that can be guessed.

Every rank of a node makes the same calls in the same order, because all of them pass through the same layers of the
same micro-batches; the exchange of tokens forces it.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from torch import Tensor
from torch.profiler import record_function

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.host_copy import HostCopy
from relibra.agent.cells.slots import NUM_SIDES, Slots
from relibra.agent.experts import Experts
from relibra.agent.transport import Copy, ExpertTransport, Handle, fetch_copies


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


class Fetcher:
    """Knows whose weights are in the slots.

    Args:
        transport: of the node.
        slots: to be filled.
        experts: of this rank, by layer.
        gathered: by layer, returns once the parameters of its experts are complete.
        host_copy: of the node's experts, if there is one.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        slots: Slots,
        experts: Mapping[int, Experts],
        gathered: Mapping[int, Callable[[], None]],
        host_copy: HostCopy | None = None,
    ) -> None:
        self._transport, self._slots, self._experts, self._gathered = transport, slots, experts, gathered
        self._host_copy, self._is_frozen = host_copy, False
        self._pending: list[list[Handle]] = [[] for _ in range(NUM_SIDES)]
        self._expected: Use | None = None

    def prefetch(self, use: Use, side: int) -> None:
        """Begin to fetch, unless that has begun; what was expected instead is dropped."""
        if self._expected != use:
            self._fill(use, side)
            self._expected = use

    def take(self, use: Use, side: int, following: Use | None) -> None:
        """Return when the weights of `use` are in their slots, and begin to fetch the following ones."""
        self.prefetch(use, side)
        with record_function(f"relibra::fetched layer {use.layer}"):
            self._settle(side)
        self._expected = following
        if following is not None and following.layer != use.layer:
            self._fill(following, 1 - side)

    def hold(self, side: int, handle: Handle) -> None:
        """Do not touch a side before `handle` is done."""
        self._pending[side].append(handle)

    def drain(self) -> None:
        """Wait for everything under way, and forget what is in the slots: weights are about to change."""
        for side in range(NUM_SIDES):
            self._settle(side)
        self._expected, self._is_frozen = None, False

    def freeze(self) -> None:
        """Collective, after `drain`: weights stay as they are until the next `drain`.

        Raises:
            RelibraError: a peer is gone.
        """
        if self._host_copy is None:
            return
        for gathered in self._gathered.values():
            gathered()
        self._host_copy.refresh()
        self._is_frozen = True

    def _fill(self, use: Use, side: int) -> None:
        self._settle(side)
        self._gathered[use.layer]()
        frozen = self._host_copy.of(use.layer) if self._host_copy is not None and self._is_frozen else None

        def home(slot: int) -> Sequence[Tensor]:
            return [parameter.detach() for parameter in self._experts[use.layer].parameters[slot]]

        def redundant(slot: int) -> Sequence[Tensor]:
            return self._slots.weights(side, slot, use.layer)

        with record_function(f"relibra::fetch layer {use.layer}"):
            self._pending[side] += fetch_copies(self._transport, use.copies, home, redundant, frozen)

    def _settle(self, side: int) -> None:
        for handle in self._pending[side]:
            handle.wait()
        self._pending[side].clear()
