"""The transfers of a cell in the order of its schedule: experts from homes to slots, gradients from slots to homes.

All ranks of the node call these functions equally often and in the same order. Gradients are never relayed: a relay
would have to add on the way, and the sum at the home would no longer be in ascending order of rank.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from relibra.agent.transport.contract import Copy, ExpertTransport, Handle, Parcel
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


def fetch_copies(
    transport: ExpertTransport,
    copies: tuple[Copy, ...],
    home: Tensors,
    slot: Tensors,
    frozen: FrozenLayer | None = None,
) -> list[Handle]:
    """Begin to bring the experts of a cell into redundant slots.

    Args:
        transport: between the ranks of the node.
        copies: the replicas of the cell.
        home: returns the weights of a home slot.
        slot: returns the weights of a redundant slot.
        frozen: the place of the weights in host memory, if they are there.
    """
    rank, sends, receives = transport.rank, list[Parcel](), list[Parcel]()
    schedule = transfer_schedule(copies, relays=transport.relays, host_speed=frozen.speed if frozen else 0.0)
    for hop in schedule.hops:
        copy = copies[hop.copy]
        if hop.sender == rank:
            relayed = hop.sent_copy
            tensors = home(copy.source_slot) if relayed is None else slot(copies[relayed].destination_slot)
            places = slot(copy.destination_slot) if transport.needs_places else None
            sends += _parcels(copy.destination_rank, tensors, places)
        if copy.destination_rank == rank:
            receives += _parcels(hop.sender, slot(copy.destination_slot))
    handles: list[Handle] = [transport.start(sends, receives)]
    pulled = [copies[i] for i in schedule.from_host if copies[i].destination_rank == rank]
    if frozen is not None and pulled:
        pulls = [
            Pull(copy.source_rank, frozen.first_expert + copy.source_slot, slot(copy.destination_slot))
            for copy in pulled
        ]
        handles.append(frozen.host.start(pulls))
    return handles


def return_gradients(transport: ExpertTransport, copies: tuple[Copy, ...], slot: Tensors, arrival: Tensors) -> Handle:
    """Begin to bring the gradients of a cell's replicas to their homes.

    Args:
        transport: between the ranks of the node.
        copies: the replicas of the cell.
        slot: returns the gradients of a redundant slot.
        arrival: returns memory at the home for the gradients of a copy, by its index.
    """
    rank, sends, receives = transport.rank, list[Parcel](), list[Parcel]()
    for hop in transfer_schedule(copies, relays=False).hops:
        copy = copies[hop.copy]
        if copy.destination_rank == rank:
            places = arrival(hop.copy) if transport.needs_places else None
            sends += _parcels(copy.source_rank, slot(copy.destination_slot), places)
        if copy.source_rank == rank:
            receives += _parcels(copy.destination_rank, arrival(hop.copy))
    return transport.start(sends, receives)


def _parcels(peer: int, tensors: Sequence[Tensor], places: Sequence[Tensor] | None = None) -> list[Parcel]:
    if places is None:
        return [Parcel(peer, each) for each in tensors]
    return [Parcel(peer, each, place) for each, place in zip(tensors, places, strict=True)]
