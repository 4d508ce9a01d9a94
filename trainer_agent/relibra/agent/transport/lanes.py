"""Lanes: parcels travel in chunks through memory of the receiver that its peers map.

The inbox of a rank has one lane for every peer, a ring of chunks. The sender copies into a free chunk and sends a
record through a pipe; the receiver copies the chunk out and sends a record back. Records number the chunks of a lane.
The kernel orders memory accesses around pipes, wakes a waiting reader, and reports the end of a process.
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
    """The kind of a record."""

    FILLED = 0
    TAKEN = 1
    WAKE = 2
    """From this rank to itself: there are new parcels."""
    STOP = 3
    """From this rank to itself: the engine must end."""


class Record(NamedTuple):
    """A message through a pipe."""

    kind: Kind
    sequence: int = 0
    """The number of the chunk in its lane, from 0."""
    size_bytes: int = 0
    """The size of the whole parcel."""


_RECORD = struct.Struct("<qqq")


class Pipes:
    """This rank's ends of the pipes between all ranks and to itself. Pipes write a record in one piece.

    Args:
        rank: this rank.
        readable: the descriptors to read from, by writing rank.
        writable: the descriptors to write to, by reading rank.
    """

    def __init__(self, rank: int, readable: Sequence[int], writable: Sequence[int]) -> None:
        self._rank, self._writable = rank, writable
        self._peer_of = {descriptor: peer for peer, descriptor in enumerate(readable)}
        self._poll = select.poll()
        for descriptor in readable:
            self._poll.register(descriptor, select.POLLIN)

    def send(self, peer: int, record: Record) -> bool:
        """Send a record, and return whether the peer still exists."""
        try:
            os.write(self._writable[peer], _RECORD.pack(*record))
        except BrokenPipeError:
            return False
        return True

    def wake(self, kind: Kind) -> None:
        """Send a record to this rank's engine, from any thread."""
        self.send(self._rank, Record(kind))

    def read(self, *, block: bool) -> Iterator[tuple[int, Record | None]]:
        """Yield every received record with its sender, and None once for a rank that has ended."""
        for descriptor, _ in self._poll.poll(None if block else 0):
            peer = self._peer_of[descriptor]
            content = os.read(descriptor, 64 * _RECORD.size)
            for kind, sequence, size_bytes in _RECORD.iter_unpack(content):
                yield peer, Record(Kind(kind), sequence, size_bytes)
            if not content:
                self._poll.unregister(descriptor)
                yield peer, None

    def close(self) -> None:
        """Close all pipes, which tells the peers that this rank has ended."""
        for descriptor in (*self._peer_of, *self._writable):
            os.close(descriptor)


class Receipt(Protocol):
    """The receiver of news about a parcel."""

    def done(self, peer: int) -> None:
        """Note that one parcel from or to `peer` was moved completely."""

    def failed(self, peer: int, why: str) -> None:
        """Note that a parcel from or to `peer` will never be moved completely."""


@dataclass(slots=True)
class Item:
    """One parcel on its way through a lane."""

    receipt: Receipt
    data: Tensor
    """The bytes of the parcel, uint8 `[bytes]`."""
    ready: object
    """The event of the mover that copies must follow."""
    turn: int = 0
    """The position among all items that this rank sends; a lower turn leaves first."""
    source: "Item | None" = None
    """For a relayed item, the incoming item that brings its bytes."""
    offset: int = 0
    """The number of bytes that have been moved."""

    def next_part(self, chunk_bytes: int) -> Tensor:
        """Return the next bytes to move. The caller adds their number to `offset` after the move."""
        return self.data[self.offset : self.offset + chunk_bytes]

    def has_part(self, chunk_bytes: int) -> bool:
        """Return whether the next bytes to move have arrived."""
        return self.source is None or self.source.offset >= min(self.offset + chunk_bytes, len(self.data))

    @property
    def is_through(self) -> bool:
        """Whether all bytes have been moved. An empty parcel is moved as one empty chunk."""
        return self.offset >= len(self.data)


@dataclass(slots=True)
class Lane:
    """Both directions of the traffic between this rank and a peer."""

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
    """Why the peer is lost; None while it is not."""

    @property
    def next_turn(self) -> int | None:
        """The turn of the item that can be filled into a chunk now, if there is one."""
        if not self.outgoing or not self.num_free or self.lost is not None:
            return None
        item = self.outgoing[0]
        return item.turn if item.has_part(self.to_peer.shape[1]) else None
