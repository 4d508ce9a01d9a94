"""Transfers of parcels of one tensor each, which are prepared and started at once."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from relibra.agent.transport import ExpertTransport, Handle, Receive, Send


class Parcel(NamedTuple):
    peer: int
    tensor: Tensor
    place: Tensor | None = None


def start(transport: ExpertTransport, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Handle:
    transfers = transport.prepare(
        [Send(peer, None if place is None else [place]) for peer, _, place in sends],
        [Receive(peer, [tensor]) for peer, tensor, _ in receives],
    )
    return transfers.start([[parcel.tensor] for parcel in sends])
