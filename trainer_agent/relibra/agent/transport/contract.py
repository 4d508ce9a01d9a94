"""The promises of every transport. One test suite runs on each implementation.

- **Order.** All ranks of the group call `start` equally often and in the same order, even with nothing to move. Within
  a call, the k-th parcel that a rank sends to a peer fills the k-th parcel that the peer receives from this rank.
  Several calls may be under way, and the caller may wait for them in any order. Parcels leave in the order of `sends`,
  as far as the transport has a choice.
- **Sizes.** Both ends agree on shape and dtype. If a parcel does not have the size that the receiver expects, it is not
  delivered, and the receiver fails as if the peer were gone. NCCL alone does not check sizes.
- **Places.** If `needs_places` is true, received tensors lie in memory that `memory` returned, and a send names the
  place of its parcel there. This memory has the same layout on all ranks, so a sender names a place by its own tensor
  at that place. A parcel whose size differs from its place is refused at the sender.
- **Relays.** If `relays` is true, a call may also send tensors that it receives; the transport sends them on as they
  arrive. Parcels that wait for each other in a circle would wait forever; `schedule` makes none.
- **Ownership.** The caller owns all tensors. From `start` to the end of `wait`, the caller neither writes sent tensors
  nor reads or writes received ones. The handle keeps the tensors alive; a transport keeps nothing after `wait`. While a
  transfer fills memory, the transport refuses any other transfer of this memory.
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


class Parcel(NamedTuple):
    """One tensor to send or to fill."""

    peer: int
    """The other rank, as an index within the group."""
    tensor: Tensor
    """A contiguous tensor."""
    place: Tensor | None = None
    """For a tensor to send, this rank's tensor at the place that the peer's tensor has, if the transport needs it."""


class Handle(Protocol):
    """The transfers of one `start`."""

    def wait(self) -> None:
        """Return when everything was sent and received; a second call returns at once.

        Raises:
            RelibraError: a peer is gone.
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
        """Whether parcels arrive in memory of the transport, and sends name the place."""

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank has sent, or begun to send, so far."""

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """Collective: return zeroed memory for arriving parcels, uint8, of the same size on all ranks.

        Raises:
            RelibraError: a peer is gone.
            Unsupported: on all ranks, if one of them has too little memory.
        """

    def start(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Handle:
        """Begin to send and to receive, and return at once.

        Raises:
            RelibraError: a peer is gone.
            InvalidInput: a transfer under way fills the memory of a tensor, or a place is missing or wrong.
            ValueError: a tensor is not contiguous.
        """
