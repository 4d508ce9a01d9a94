"""The promises of every transport. One test suite runs on each implementation.

A *parcel* is some tensors that travel together: an expert, or the gradient of a replica.

- **Routes.** A rank prepares its part of a transfer once, without its peers, and starts it any number of times.
- **Order.** All ranks of the group call `start` equally often and in the same order, even with nothing to move. Within
  a call, the k-th parcel that a rank sends to a peer fills the k-th parcel that the peer receives from this rank.
  Several calls may be under way, and the caller may wait for them in any order. Parcels leave in the order of `sends`,
  as far as the transport has a choice.
- **Sizes.** Both ends agree on shapes and dtypes. If a tensor does not have the size that the receiver expects, it is
  not delivered, and the receiver fails as if the peer were gone. NCCL alone does not check sizes.
- **Places.** If `needs_places` is true, received tensors lie in memory that `memory` returned, and a send names the
  places of its parcel there. This memory has the same layout on all ranks, so a sender names a place by its own tensor
  at that place. A tensor whose size differs from its place is refused at the sender.
- **Relays.** If `relays` is true, a call may also send tensors that it receives; the transport sends them on as they
  arrive. Parcels that wait for each other in a circle would wait forever; `schedule` makes none.
- **Ownership.** The caller owns all tensors. From `start` to the end of `wait`, the caller neither writes sent tensors
  nor reads or writes received ones. The handle keeps sent tensors alive; a transport keeps none of them after `wait`.
  While a transfer fills memory, the transport refuses any other transfer of this memory.
- **Streams.** On a GPU, the transfer comes after all work queued on the current stream before `start`, and work queued
  after `wait` comes after the transfer. The transfer itself need not run on the current stream.
- **Abandoning.** A transfer cannot be cancelled. Before its memory is used again, somebody must wait for it.
- **Failure.** `start` or `wait` raise `RelibraError` on the ranks that miss a peer, at the latest after the timeout of
  the transport. Over NCCL and through symmetric memory, `wait` blocks a stream and not the host, so a watchdog ends the
  process instead. After a failure, received tensors and the transport are undefined, and the job restarts from a
  checkpoint.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Copy(NamedTuple):
    """One replica of a cell. Ranks are indices within the node."""

    source_rank: int
    source_slot: int
    """The home slot of the expert."""
    destination_rank: int
    destination_slot: int
    """The redundant slot, counted from 0."""


class Send(NamedTuple):
    """The way of a parcel that leaves."""

    peer: int
    """The receiver, as an index within the group."""
    places: Sequence[Tensor] | None = None
    """This rank's tensors at the places that the peer's have, if the transport needs them."""


class Receive(NamedTuple):
    """A parcel that arrives."""

    peer: int
    """The sender, as an index within the group."""
    tensors: Sequence[Tensor]
    """The contiguous tensors to fill."""


class Handle(Protocol):
    """The transfers of one `start`."""

    def wait(self) -> None:
        """Return when everything was sent and received; a second call returns at once.

        Raises:
            RelibraError: a peer is gone.
        """


class Transfers(Protocol):
    """The part of one rank in a transfer, which may start any number of times."""

    def start(self, sent: Sequence[Sequence[Tensor]]) -> Handle:
        """Begin to send and to receive, and return at once.

        Args:
            sent: the contiguous tensors of each parcel that leaves. The tensors and their addresses may differ from the
                last start.

        Raises:
            RelibraError: a peer is gone.
            InvalidInput: a transfer under way fills the memory of a tensor, or a tensor does not fit its place.
            ValueError: a tensor is not contiguous.
        """


class ExpertTransport(Protocol):
    """One rank's end of a transport. All ranks of the group make theirs together."""

    @property
    def rank(self) -> int:
        """The index of this rank within the group."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks in the group."""

    @property
    def relays(self) -> bool:
        """Whether a call may send tensors that it receives."""

    @property
    def needs_places(self) -> bool:
        """Whether parcels arrive in memory of the transport, and sends name the places."""

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank has sent, or begun to send, so far."""

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """Collective: return zeroed memory for arriving parcels, uint8, of the same size on all ranks.

        Raises:
            RelibraError: a peer is gone.
            Unsupported: on all ranks, if one of them has too little memory.
        """

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> Transfers:
        """Return this rank's part of a transfer. The received tensors must stay where they are.

        Raises:
            InvalidInput: a place is missing or wrong, or two received tensors overlap.
            ValueError: a received tensor is not contiguous.
        """
