"""Parcels cut into chunks, through memory of the receiver that its peers map.

A rank's inbox has a lane for every peer, a ring of chunks. The sender copies into a free chunk and sends a record
through a pipe; the receiver copies out and sends one back. Records number the chunks of a lane. The kernel orders
memory around pipes, wakes who waits, and reports a process that ends.
"""

import os
import select
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol

from torch import Tensor

CHUNKS_PER_LANE = 8


class Kind(IntEnum):
    """Of a record."""

    FILLED = 0
    TAKEN = 1
    WAKE = 2
    """From the own rank: there are new parcels."""
    STOP = 3
    """From the own rank."""


class Record(NamedTuple):
    """What travels through pipes."""

    kind: Kind
    sequence: int = 0
    """Number of the chunk in its lane, from 0."""
    size_bytes: int = 0
    """Of the whole parcel."""


_RECORD = struct.Struct("<qqq")


class Pipes:
    """One from each rank to each other one and to itself; records are too small to be torn.

    Args:
        rank: the own one.
        readable: descriptors, by rank that writes.
        writable: descriptors, by rank that reads.
    """

    def __init__(self, rank: int, readable: Sequence[int], writable: Sequence[int]) -> None:
        self._rank, self._writable = rank, writable
        self._peer_of = {descriptor: peer for peer, descriptor in enumerate(readable)}
        self._poll = select.poll()
        for descriptor in readable:
            self._poll.register(descriptor, select.POLLIN)

    def send(self, peer: int, record: Record) -> bool:
        """Return whether the peer is there to read it."""
        try:
            os.write(self._writable[peer], _RECORD.pack(*record))
        except BrokenPipeError:
            return False
        return True

    def wake(self, kind: Kind) -> None:
        """Send to the own rank, from any thread."""
        self.send(self._rank, Record(kind))

    def read(self, *, block: bool) -> Iterator[tuple[int, Record | None]]:
        """Yield what came and from whom; None once from a rank that has ended."""
        for descriptor, _ in self._poll.poll(None if block else 0):
            peer = self._peer_of[descriptor]
            content = os.read(descriptor, 64 * _RECORD.size)
            for kind, sequence, size_bytes in _RECORD.iter_unpack(content):
                yield peer, Record(Kind(kind), sequence, size_bytes)
            if not content:
                self._poll.unregister(descriptor)
                yield peer, None

    def close(self) -> None:
        """Let the peers know."""
        for descriptor in (*self._peer_of, *self._writable):
            os.close(descriptor)


class Receipt(Protocol):
    """Whoever wants to know."""

    def done(self, peer: int) -> None:
        """One parcel from or to `peer` is through."""

    def failed(self, peer: int, why: str) -> None:
        """It will never be."""


@dataclass(slots=True)
class Item:
    """One parcel on its way through a lane."""

    receipt: Receipt
    data: Tensor
    """Uint8 `[bytes]`."""
    ready: object
    """Of the mover."""
    turn: int = 0
    """Among all that the rank sends: who comes first leaves first."""
    source: "Item | None" = None
    """What brings the same bytes, of an item that is relayed."""
    offset: int = 0
    """What is before it has been moved."""

    def next_part(self, chunk_bytes: int) -> Tensor:
        """Return the bytes that come next; whoever has moved them says so in `offset`."""
        return self.data[self.offset : self.offset + chunk_bytes]

    def has_part(self, chunk_bytes: int) -> bool:
        """Return whether the bytes that come next are there."""
        return self.source is None or self.source.offset >= min(self.offset + chunk_bytes, len(self.data))

    @property
    def is_through(self) -> bool:
        """An empty parcel takes a chunk, too."""
        return self.offset >= len(self.data)


@dataclass(slots=True)
class Lane:
    """Both directions between this rank and a peer."""

    to_peer: Tensor
    """The peer's memory for this rank, uint8 `[chunks, bytes]`."""
    from_peer: Tensor
    """This rank's memory for the peer."""
    outgoing: deque[Item] = field(default_factory=deque)
    expected: deque[Item] = field(default_factory=deque)
    num_filled: int = 0
    num_free: int = CHUNKS_PER_LANE
    num_taken: int = 0
    filled: deque[Record] = field(default_factory=deque)
    lost: str | None = None
    """Why the peer is out of reach."""

    @property
    def next_turn(self) -> int | None:
        """Of the item that can be filled into a chunk now, if there is one."""
        if not self.outgoing or not self.num_free or self.lost is not None:
            return None
        item = self.outgoing[0]
        return item.turn if item.has_part(self.to_peer.shape[1]) else None
