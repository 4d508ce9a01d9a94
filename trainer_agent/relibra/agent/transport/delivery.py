"""Experts from their homes to slots, and gradients from slots to homes, in the order of the schedule.

All ranks of the node call these functions equally often and in the same order. A relay of gradients would have to add
up on the way, and the sum at the home would no longer be in ascending order of rank: gradients come straight.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from relibra.agent.transport.contract import Copy, ExpertTransport, Handle, Parcel
from relibra.agent.transport.host import HostPulls, Pull
from relibra.agent.transport.schedule import transfer_schedule

Tensors = Callable[[int], Sequence[Tensor]]
"""Of a slot on this rank, or of a copy."""


class FrozenLayer(NamedTuple):
    """Where weights that do not change can be had, too."""

    host: HostPulls
    first_expert: int
    """Index in `host` of what is in the first home slot, on every rank."""
    speed: float
    """As in `transfer_schedule`."""


def fetch_copies(
    transport: ExpertTransport,
    copies: tuple[Copy, ...],
    home: Tensors,
    slot: Tensors,
    frozen: FrozenLayer | None = None,
) -> list[Handle]:
    """Begin to bring the experts of a cell into redundant slots.

    Args:
        transport: of the node.
        copies: of the cell.
        home: of a home slot.
        slot: of a redundant slot.
        frozen: where the host has the weights.
    """
    rank, sends, receives = transport.rank, list[Parcel](), list[Parcel]()
    schedule = transfer_schedule(copies, relays=transport.relays, host_speed=frozen.speed if frozen else 0.0)
    for hop in schedule.hops:
        copy = copies[hop.copy]
        if hop.sender == rank:
            relayed = hop.sent_copy
            tensors = home(copy.source_slot) if relayed is None else slot(copies[relayed].destination_slot)
            sends += [Parcel(copy.destination_rank, each) for each in tensors]
        if copy.destination_rank == rank:
            receives += [Parcel(hop.sender, each) for each in slot(copy.destination_slot)]
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
        transport: of the node.
        copies: of the cell.
        slot: gradients of a redundant slot.
        arrival: room at the home for those of a copy, by its index.
    """
    rank, sends, receives = transport.rank, list[Parcel](), list[Parcel]()
    for hop in transfer_schedule(copies, relays=False).hops:
        copy = copies[hop.copy]
        if copy.destination_rank == rank:
            sends += [Parcel(copy.source_rank, each) for each in slot(copy.destination_slot)]
        if copy.source_rank == rank:
            receives += [Parcel(copy.destination_rank, each) for each in arrival(hop.copy)]
    return transport.start(sends, receives)
