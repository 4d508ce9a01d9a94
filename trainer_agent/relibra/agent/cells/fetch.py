"""The fetch of replica weights into the redundant slots, ahead of their use where the next use can be guessed.

All ranks of a node make the same calls in the same order, because the exchange of tokens takes all of them through the
same layers of the same micro-batches. Guesses are equal on all ranks of a node, so the rank that sends weights ahead of
time guesses the same use as the rank that receives them.
"""

from collections.abc import Callable, Mapping

from relibra.agent.cells.cells import StepCells
from relibra.agent.cells.host_copy import HostCopy
from relibra.agent.cells.pass_order import Use
from relibra.agent.cells.slots import NUM_SIDES, Slots
from relibra.agent.cells.span import span
from relibra.agent.experts import Experts
from relibra.agent.transport import ExpertTransport, Fetch, Handle


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
        self._fetches: dict[tuple[int, int, bool], Fetch] = {}
        """The transfers for `_cells` by micro-batch, layer, and whether weights are frozen."""

    def prefetch(self, use: Use, following: Use | None) -> None:
        """Begin to fetch `use`, and `following` if it goes into the other side, unless these fetches have begun.

        Fetches of other uses are dropped. `following` is left to `take` if its parameters may not be complete: waiting
        for them so early would expose a gather that the layer in between hides.
        """
        self._begin(use)
        if following is not None and following.layer not in self.gathered:
            self._begin_beside(use, following)

    def take(self, use: Use, following: Use | None) -> None:
        """Return when the weights of `use` are in their slots; by then, the fetch of `following` has begun beside."""
        self._begin(use)
        self._begin_beside(use, following)
        with span("fetched", use.layer):
            self._settle(use.side)
        self._held[use.side] = following if use.is_same_cell(following) else None

    def leave(self, use: Use, following: Use | None) -> None:
        """Begin to fetch `following` into the side of `use`, whose experts have run, unless it goes into the other."""
        if following is not None and following.side == use.side:
            self._begin(following)

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

    def _begin(self, use: Use) -> None:
        if self._held[use.side] != use:
            self._held = [None] * NUM_SIDES  # nobody guessed this use, so nobody knows how old the other guess is
            self._fill(use)

    def _begin_beside(self, use: Use, following: Use | None) -> None:
        if following is not None and following.side != use.side and self._held[following.side] != following:
            self._fill(following)

    def _fill(self, use: Use) -> None:
        self._settle(use.side)
        self._held[use.side] = use
        if use.layer in self.gathered:
            self.gathered[use.layer]()
        with span("fetch", use.layer):
            self._pending[use.side] += self._fetch_of(use).start()

    def _fetch_of(self, use: Use) -> Fetch:
        """Return the transfers for a use, which are the same in forward and backward and in every phase of a step."""
        if use.cells is not self._cells:
            self._cells, self._fetches = use.cells, {}
        key = use.micro_batch, use.layer, self._is_frozen
        if key not in self._fetches:
            frozen = self.host_copy.of(use.layer) if self.host_copy is not None and self._is_frozen else None
            home = self._experts[use.layer].parameters
            self._fetches[key] = Fetch.of(
                self._transport,
                use.copies,
                # Parameters and not views of them, which would keep their memory when the model is offloaded.
                home=lambda slot: home[slot],
                slot=lambda slot: self._slots.places(use.side, slot, use.layer),
                frozen=frozen,
            )
        return self._fetches[key]

    def _settle(self, side: int) -> None:
        for handle in self._pending[side]:
            handle.wait()
        self._pending[side].clear()
