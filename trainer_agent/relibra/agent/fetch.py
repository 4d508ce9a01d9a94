"""Bring the weights of replicas into the redundant slots, before they are wanted where that can be guessed.

Every rank of a node makes the same calls in the same order, because all of them pass through the same layers of the
same micro-batches; the exchange of tokens forces it.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from relibra.agent.experts import Experts
from relibra.agent.slots import NUM_SIDES, Slots
from relibra.agent.transport import ExpertTransport, Handle, Parcel
from relibra.agent.uses import Use


class Fetcher:
    """Knows whose weights are in the slots.

    Args:
        transport: of the node.
        slots: to be filled.
        experts: of this rank, by layer.
        gathered: by layer, returns once the parameters of its experts are complete.
    """

    def __init__(
        self,
        transport: ExpertTransport,
        slots: Slots,
        experts: Mapping[int, Experts],
        gathered: Mapping[int, Callable[[], None]],
    ) -> None:
        self._transport, self._slots, self._experts, self._gathered = transport, slots, experts, gathered
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
        self._expected = None

    def _fill(self, use: Use, side: int) -> None:
        self._settle(side)
        self._gathered[use.layer]()
        sends, receives = list[Parcel](), list[Parcel]()
        for copy in use.copies:
            if copy.source_rank == self._transport.rank:
                home: Sequence[Tensor] = self._experts[use.layer].parameters[copy.source_slot]
                sends += [Parcel(copy.destination_rank, tensor.detach()) for tensor in home]
            if copy.destination_rank == self._transport.rank:
                slot = self._slots.weights(side, copy.destination_slot, use.layer)
                receives += [Parcel(copy.source_rank, tensor) for tensor in slot]
        self._pending[side].append(self._transport.start(sends, receives))

    def _settle(self, side: int) -> None:
        for handle in self._pending[side]:
            handle.wait()
        self._pending[side].clear()
