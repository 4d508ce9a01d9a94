"""The transfers of a cell: experts from homes to slots, gradients from slots to homes.

All ranks of the node begin these transfers equally often and in the same order. Experts that travel through relays, or
from the host as well, need a schedule. Gradients are never relayed: a relay would have to add on the way, and the sum
at the home would no longer be in ascending order of rank. What travels straight needs no schedule: each rank sends in
order of the distance, so that no two ranks begin with the same peer if every rank has something for every other one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from relibra.agent.transport.contract import Copy, ExpertTransport, Handle, Receive, Send, Transfers
from relibra.agent.transport.host import HostPulls, Pull
from relibra.agent.transport.schedule import transfer_schedule

Tensors = Callable[[int], Sequence[Tensor]]
"""Returns the tensors of a slot on this rank, or of a copy. If the transport needs places, senders also call it for
their own tensors at the place of a peer's."""


class FrozenLayer(NamedTuple):
    """The place of a layer's weights in host memory, while they do not change."""

    host: HostPulls
    first_expert: int
    """The index in `host` of the expert in the first home slot, on every rank."""
    speed: float
    """`host_speed` of `transfer_schedule`."""


class Fetch(NamedTuple):
    """The transfers of one rank that bring the experts of a cell into redundant slots, as often as `start` is called.

    The tensors must stay the same objects. Their memory may change between two calls.
    """

    transfers: Transfers
    sent: Sequence[Sequence[Tensor]]
    host: HostPulls | None = None
    pulls: Sequence[Pull] = ()

    @classmethod
    def of(
        cls,
        transport: ExpertTransport,
        copies: tuple[Copy, ...],
        home: Tensors,
        slot: Tensors,
        frozen: FrozenLayer | None = None,
    ) -> "Fetch":
        """Return the transfers of this rank.

        Args:
            transport: between the ranks of the node.
            copies: the replicas of the cell.
            home: returns the weights of a home slot.
            slot: returns the weights of a redundant slot.
            frozen: the place of the weights in host memory, if they are there.
        """
        rank, sends, sent, receives = transport.rank, list[Send](), list[Sequence[Tensor]](), list[Receive]()

        def send(copy: Copy, tensors: Sequence[Tensor]) -> None:
            sends.append(Send(copy.destination_rank, slot(copy.destination_slot) if transport.needs_places else None))
            sent.append(tensors)

        if frozen is None and not transport.relays:
            leaving, arriving = _turns([(c.source_rank, c.destination_rank) for c in copies], rank, transport.num_ranks)
            for copy in (copies[i] for i in leaving):
                send(copy, home(copy.source_slot))
            receives += [Receive(copies[i].source_rank, slot(copies[i].destination_slot)) for i in arriving]
            return cls(transport.prepare(sends, receives), sent)
        schedule = transfer_schedule(copies, relays=transport.relays, host_speed=frozen.speed if frozen else 0.0)
        for hop in schedule.hops:
            copy = copies[hop.copy]
            if hop.sender == rank:
                relayed = hop.sent_copy
                send(copy, home(copy.source_slot) if relayed is None else slot(copies[relayed].destination_slot))
            if copy.destination_rank == rank:
                receives.append(Receive(hop.sender, slot(copy.destination_slot)))
        transfers = transport.prepare(sends, receives)
        if frozen is None:
            return cls(transfers, sent)
        pulled = [copies[i] for i in schedule.from_host if copies[i].destination_rank == rank]
        pulls = [
            Pull(copy.source_rank, frozen.first_expert + copy.source_slot, slot(copy.destination_slot))
            for copy in pulled
        ]
        return cls(transfers, sent, frozen.host, pulls)

    def start(self) -> list[Handle]:
        """Begin the transfers."""
        handles: list[Handle] = [self.transfers.start(self.sent)]
        if self.host is not None and self.pulls:
            handles.append(self.host.start(self.pulls))
        return handles


class Return(NamedTuple):
    """The transfers of one rank that bring gradients of a cell home, as often as `start` is called.

    The memory in which they arrive must stay the same tensors.
    """

    transfers: Transfers
    slots: Sequence[int]
    """The redundant slot of each replica on this rank, in the order in which gradients leave."""

    @classmethod
    def of(cls, transport: ExpertTransport, copies: tuple[Copy, ...], arrival: Tensors) -> "Return":
        """Return the transfers of this rank.

        Args:
            transport: between the ranks of the node.
            copies: the replicas of the cell.
            arrival: returns memory at the home for the gradients of a copy, by its index.
        """
        ends = [(copy.destination_rank, copy.source_rank) for copy in copies]
        leaving, arriving = _turns(ends, transport.rank, transport.num_ranks)
        sends = [Send(copies[i].source_rank, arrival(i) if transport.needs_places else None) for i in leaving]
        receives = [Receive(copies[i].destination_rank, arrival(i)) for i in arriving]
        return cls(transport.prepare(sends, receives), [copies[i].destination_slot for i in leaving])

    def start(self, slot: Tensors) -> Handle:
        """Begin the transfers.

        Args:
            slot: returns the gradients of a redundant slot.
        """
        return self.transfers.start([slot(each) for each in self.slots])


def _turns(ends: Sequence[tuple[int, int]], rank: int, num_ranks: int) -> tuple[list[int], list[int]]:
    """Return the indices of the transfers that leave a rank, and of those that arrive there, in order of the distance.

    `ends` are the sender and the receiver of each transfer.
    """
    leaving = sorted(((receiver - rank) % num_ranks, i) for i, (sender, receiver) in enumerate(ends) if sender == rank)
    arriving = sorted(((rank - sender) % num_ranks, i) for i, (sender, receiver) in enumerate(ends) if receiver == rank)
    return [i for _, i in leaving], [i for _, i in arriving]
