"""Everything that the symmetric transport asks of a device.

`CudaMemory` provides it with torch's symmetric memory. Tests provide it on a CPU, with threads for streams.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Mark(Protocol):
    """A point in a stream."""

    def wait(self) -> None:
        """Order the work queued from now on, on the current stream, after this point.

        Raises:
            RelibraError: a signal did not come in time. Only devices on which the host waits can tell.
        """


class Stream(Protocol):
    """A queue of work. Every method queues and returns; the device works in this order.

    On a CPU, where the current stream is the calling thread, its methods return when the work is done.
    """

    def follow(self) -> None:
        """Come after all work queued so far on the current stream."""

    def copy(self, into: Tensor, source: Tensor) -> None:
        """Copy a tensor to one of its shape and dtype, within the device or to a peer; both are contiguous."""

    def put_signal(self, peer: int, word: int, value: int) -> None:
        """Write a word of a peer, after everything that this stream did before is visible to the peer."""

    def wait_signal(self, word: int, value: int) -> None:
        """Wait until a word of this rank has reached `value`, counted modulo 2^32."""

    def mark(self) -> Mark:
        """Return the present end of the queue."""


class SymmetricMemory(Protocol):
    """Memory at the same place on every rank of a node, and `2 * num_ranks` signal words of 32 bits, zero at first.

    Ranks write the words of peers. A word only counts up, modulo 2^32, so that a wait consumes nothing.
    """

    rank: int
    num_ranks: int

    def allocate(self, size_bytes: int) -> Sequence[Tensor]:
        """Collective: allocate as many zero bytes on every rank, and return all ranks' memory, uint8, by rank.

        Raises:
            RelibraError: a peer is gone.
            Unsupported: on all ranks, if one of them has too little memory, or cannot map another rank's.
        """

    def current_stream(self) -> Stream:
        """Return the queue of the caller, whichever it is when work is queued."""

    def side_stream(self) -> Stream:
        """Return a new queue. It may share a queue of the hardware with others, and so wait for what they wait for."""
