"""What every transport promises; its tests run on each implementation.

- **Order.** All ranks of the group call `start` equally often and in the same order, also with nothing to move. Of one
  call, the k-th parcel that a rank sends to a peer fills the k-th one the peer receives from it. Several calls may be
  under way; they may be waited for in any order. What comes first in `sends` leaves first, as far as the transport has
  a choice.
- **Sizes.** Both ends agree on shape and dtype. A parcel of another size than the receiver expects is not delivered,
  and the receiver fails as if the peer were gone; NCCL alone does not look.
- **Relays.** Where `relays`, a call may also send the very tensors that it receives; they are sent on as they arrive.
  Parcels that wait for each other in a circle would wait forever: see `schedule`.
- **Ownership.** The caller owns all tensors. From `start` to the end of `wait` it neither writes what is sent nor reads
  or writes what is received. The handle keeps them alive; a transport keeps nothing after `wait`. Memory that a
  transfer under way fills is refused to all others.
- **Streams.** On a GPU, `start` comes after everything queued on the current stream, and what is queued after `wait`
  comes after the transfer. The transfer itself need not run on the current stream.
- **Abandoning.** A transfer cannot be cancelled: also what nobody wants any more is waited for before its memory is
  used again.
- **Failure.** `start` or `wait` raise `RelibraError` on the ranks that miss a peer, at the latest after the timeout of
  the transport; over NCCL, whose `wait` holds up a stream and no host, its watchdog ends the process instead. Received
  tensors are undefined then, and so is the transport: the job restarts from a checkpoint.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Copy(NamedTuple):
    """One replica of a cell; ranks count within the node."""

    source_rank: int
    source_slot: int
    """Home slot of the expert."""
    destination_rank: int
    destination_slot: int
    """Redundant slot, counted from 0."""


class Parcel(NamedTuple):
    """One tensor on its way."""

    peer: int
    """Rank within the group, not the own one."""
    tensor: Tensor
    """Contiguous."""


class Handle(Protocol):
    """Transfers of one `start`."""

    def wait(self) -> None:
        """Return when everything was sent and received; at once, when called again.

        Raises:
            RelibraError: a peer is gone.
        """


class ExpertTransport(Protocol):
    """One rank's end of the transport within its group; made by all ranks of the group together."""

    @property
    def rank(self) -> int:
        """This rank within the group."""

    @property
    def num_ranks(self) -> int:
        """Of the group."""

    @property
    def relays(self) -> bool:
        """Whether a call may send what it receives."""

    @property
    def sent_bytes(self) -> int:
        """What this rank sent so far, or has begun to send."""

    def start(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> Handle:
        """Begin to send and to receive; returns at once.

        Raises:
            RelibraError: a peer is gone.
            InvalidInput: a transfer under way fills this memory.
            ValueError: a tensor is not contiguous.
        """
