"""Everything that the symmetric transport asks of a device.

`CudaMemory` provides it with torch's symmetric memory. Tests provide it on a CPU, with threads for streams.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Put(NamedTuple):
    """Write a word of a rank, after everything that the stream did before is visible to that rank."""

    peer: int
    """The rank. It may be the stream's own."""
    word: int
    value: int


class Wait(NamedTuple):
    """Wait until a word of the stream's own rank has reached a value."""

    word: int
    value: int


class Push(NamedTuple):
    """Copy bytes, within the device or to a peer. Pushes that follow one another may run in any order."""

    into: int
    """The address in this process, also of memory of a peer."""
    source: int
    size_bytes: int


Work = Put | Wait | Push
Queue = Callable[[int], None]
"""Queues some work and returns. Its argument is added to all values.

On a CPU, where the current stream is the calling thread, work on that stream is over on return.

Raises:
    RelibraError: a signal did not come in time. Only devices on which the host waits can tell.
"""


class Stream(Protocol):
    """A queue of work, which the device does in the order in which it is queued."""

    def prepare(self, work: Sequence[Work]) -> Queue:
        """Return a function that queues this work in this order, as often as it is called."""


class SymmetricMemory(Protocol):
    """Memory at the same place on every rank of a node, and `2 * num_ranks` signal words of 64 bits, zero at first.

    Ranks write the words of peers. A word only counts up, so that a wait consumes nothing.
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
