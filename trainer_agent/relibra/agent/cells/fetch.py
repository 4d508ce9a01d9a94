"""The fetch of replica weights into the redundant slots, ahead of their use where the next use can be guessed.

All ranks of a node make the same calls in the same order, because the exchange of tokens takes all of them through the
same layers of the same micro-batches. Guesses are equal on all ranks of a node, so the rank that sends weights ahead of
time guesses the same use as the rank that receives them.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.host_copy import HostCopy
from relibra.agent.cells.slots import NUM_SIDES, Slots
from relibra.agent.cells.span import span
from relibra.agent.experts import Experts
from relibra.agent.transport import Copy, ExpertTransport, Fetch, Handle


class Moment(Enum):
    """The kind of pass in which a layer runs a cell."""

    INFERENCE = "a forward without a backward"
    FORWARD = "a forward whose backward comes later"
    RECOMPUTATION = "a forward again, within the backward"
    BACKWARD = "a backward"


class Use(NamedTuple):
    """The use of a cell's replicas in the forward or the backward of its micro-batch.

    Weights may change between two forwards of a micro-batch, but not between its forward and its backward.
    """

    cells: StepCells
    micro_batch: int
    layer: int
    in_backward: bool

    @property
    def copies(self) -> tuple[Copy, ...]:
        """The copies that bring its weights."""
        return self.cells.copies(self.micro_batch, self.layer)


def next_use(use: Use, moment: Moment, layers: Sequence[int]) -> Use | None:
    """Guess the next use in the same micro-batch; return None if there is none.

    A pipeline schedule may run another micro-batch next. Then the guess is dropped.

    Args:
        use: the present use.
        moment: the kind of pass of the present use.
        layers: the layers of the model chunk that have replicas in this micro-batch, ascending; they include the
            present one.
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
    """Fills the redundant slots of a rank, and knows whose weights are in them.

    Args:
        transport: between the ranks of the node.
        slots: the slots to fill.
        experts: the experts of this rank, by layer.
        gathered: by layer, a function that waits until the parameters of its experts are complete, if they may not be.
        host_copy: the node's host copy of experts, if there is one. It may come later, before the first step.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        slots: Slots,
        experts: Mapping[int, Experts],
        gathered: Mapping[int, Callable[[], None]],
        host_copy: HostCopy | None = None,
    ) -> None:
        self._transport, self._slots, self._experts, self.gathered = transport, slots, experts, gathered
        self.host_copy, self._is_frozen = host_copy, False
        self._pending: list[list[Handle]] = [[] for _ in range(NUM_SIDES)]
        self._held: list[Use | None] = [None] * NUM_SIDES
        """By side, the use whose weights it has or gets, until they are taken: weights may change then."""
        self._cells: StepCells | None = None
        self._fetches: dict[tuple[int, int, int, bool], Fetch] = {}
        """The transfers for `_cells` by micro-batch, layer, side, and whether weights are frozen."""

    def prefetch(self, use: Use, side: int, following: Use | None) -> None:
        """Begin to fetch `use`, and `following` into the other side, unless these fetches have begun.

        Fetches of other uses are dropped. `following` is left to `take` if its parameters may not be complete: waiting
        for them so early would expose a gather that the layer in between hides.
        """
        self._begin(use, side)
        if following is not None and following.layer not in self.gathered:
            self._begin_following(use, side, following)

    def take(self, use: Use, side: int, following: Use | None) -> None:
        """Return when the weights of `use` are in their slots; by then, the fetch of `following` has begun."""
        self._begin(use, side)
        self._begin_following(use, side, following)
        with span("fetched", use.layer):
            self._settle(side)
        self._held[side] = following if following is not None and following.layer == use.layer else None

    def hold(self, side: int, handle: Handle) -> None:
        """Do not touch the slots of `side` before `handle` is done."""
        self._pending[side].append(handle)

    def drain(self) -> None:
        """Wait for all transfers under way, and forget what is in the slots, because weights are about to change."""
        for side in range(NUM_SIDES):
            self._settle(side)
        self._held, self._is_frozen = [None] * NUM_SIDES, False

    def freeze(self) -> None:
        """Collective, after `drain`: rely on weights not changing until the next `drain`, and refresh the host copy.

        Raises:
            RelibraError: a peer is gone.
        """
        if self.host_copy is None:
            return
        for gathered in self.gathered.values():
            gathered()
        self.host_copy.refresh(lambda layer: self._slots.places(0, 0, layer))
        self._is_frozen = True

    def _begin(self, use: Use, side: int) -> None:
        if self._held[side] != use:
            self._held = [None] * NUM_SIDES  # nobody guessed this use, so nobody knows how old the other guess is
            self._fill(use, side)

    def _begin_following(self, use: Use, side: int, following: Use | None) -> None:
        if following is not None and following.layer != use.layer and self._held[1 - side] != following:
            self._fill(following, 1 - side)

    def _fill(self, use: Use, side: int) -> None:
        self._settle(side)
        self._held[side] = use
        if use.layer in self.gathered:
            self.gathered[use.layer]()
        with span("fetch", use.layer):
            self._pending[side] += self._fetch_of(use, side).start()

    def _fetch_of(self, use: Use, side: int) -> Fetch:
        """Return the transfers for a use, which are the same in forward and backward and in every phase of a step."""
        if use.cells is not self._cells:
            self._cells, self._fetches = use.cells, {}
        key = use.micro_batch, use.layer, side, self._is_frozen
        if key not in self._fetches:
            frozen = self.host_copy.of(use.layer) if self.host_copy is not None and self._is_frozen else None
            home = self._experts[use.layer].parameters
            self._fetches[key] = Fetch.of(
                self._transport,
                use.copies,
                # Parameters and not views of them, which would keep their memory when the model is offloaded.
                home=lambda slot: home[slot],
                slot=lambda slot: self._slots.places(side, slot, use.layer),
                frozen=frozen,
            )
        return self._fetches[key]

    def _settle(self, side: int) -> None:
        for handle in self._pending[side]:
            handle.wait()
        self._pending[side].clear()
