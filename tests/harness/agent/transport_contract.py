"""The contract of transports: acts and assertions of ranks that move tensors, with any transport."""

import contextlib
import functools
import gc
import math
import weakref
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from harness.agent.emulated_memory import emulated_transport
from harness.agent.parcels import Parcel, start
from relibra.agent.transport import (
    Copy,
    ExpertTransport,
    Fetch,
    Handle,
    ProcessGroupTransport,
    Return,
)
from relibra.errors import InvalidInput, RelibraError
from relibra.kernels import ALIGNMENT_BYTES

TIMEOUT_S = 20.0
SHORT_S = 0.5
DTYPES = [torch.uint8, torch.bfloat16, torch.float32]
Make = Callable[[dist.ProcessGroup, float], ExpertTransport]
NUM_CELLS, NUM_UNDER_WAY = 300, 4


@functools.cache
def group_of(size: int) -> dist.ProcessGroup:
    """Collective over the ranks of a node: return the group of `size` ranks that this rank is in."""
    groups = [dist.new_group(range(first, first + size)) for first in range(0, dist.get_world_size(), size)]
    group: dist.ProcessGroup = groups[dist.get_rank() // size]
    return group


def impatient(group: dist.ProcessGroup, timeout_s: float) -> dist.ProcessGroup:
    """Return a group of the same ranks with this timeout, which also limits the time to connect."""
    dist.barrier(group)
    ranks = dist.get_process_group_ranks(group)
    own = dist.new_group(ranks, timeout=timedelta(seconds=timeout_s), use_local_synchronization=True)
    assert own is not None
    return own


def process_group(group: dist.ProcessGroup, timeout_s: float) -> ExpertTransport:
    return ProcessGroupTransport(impatient(group, timeout_s), torch.get_default_device())


TRANSPORTS: dict[str, Make] = {"process_group": process_group, "symmetric": emulated_transport}


class Room:
    """Tensors in memory of a transport. Ranks that ask for the same tensors in the same order get the same places."""

    def __init__(self, memory: Tensor) -> None:
        self._left = memory

    @classmethod
    def of(cls, transport: ExpertTransport, size_bytes: int) -> "Room":
        return cls(transport.memory(size_bytes, torch.get_default_device()))

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        size_bytes = math.prod(shape) * dtype.itemsize
        taken, self._left = self._left[:size_bytes], self._left[-(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES :]
        return taken.view(dtype).view(shape).zero_()


def arrival(make: Make, group: dist.ProcessGroup) -> None:
    """Send random parcels in several calls at once, and wait for them in another order on every rank."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    rng, own = np.random.default_rng(5), np.random.default_rng(rank)
    transport, calls, sent_bytes = make(group, TIMEOUT_S), [], 0
    room = Room.of(transport, 64 << 20)
    for call in range(12):
        sends, receives = list[Parcel](), list[Parcel]()
        expected = []
        for k in range(int(rng.integers(0, 9))):
            source, destination = (int(each) for each in rng.permutation(world)[:2])
            shape = (int(rng.integers(1, 4)) << 18,) if rng.random() < 0.1 else tuple(rng.integers(0, 40, 2).tolist())
            values = torch.full(shape, (7 * call + k) % 200).to(DTYPES[int(rng.integers(len(DTYPES)))])
            place = room.tensor(*shape, dtype=values.dtype)
            if source == rank:
                sends.append(Parcel(destination, values, place))
                sent_bytes += values.nbytes
            if destination == rank:
                receives.append(Parcel(source, place))
                expected.append(values)
        calls.append((start(transport, sends, receives), receives, expected))
    for i in own.permutation(len(calls)):
        calls[i][0].wait()
        calls[i][0].wait()
    for call, (_, receives, expected) in enumerate(calls):
        assert all(torch.equal(parcel.tensor, want) for parcel, want in zip(receives, expected, strict=True)), call
    assert transport.sent_bytes == sent_bytes
    assert sum(len(expected) for _, _, expected in calls) > 5


def ownership(make: Make, group: dist.ProcessGroup) -> None:
    """`start` returns before the peer takes part. The handle keeps tensors alive until `wait`, and no longer."""
    rank, transport, store = dist.get_rank(group), make(group, TIMEOUT_S), dist.distributed_c10d._get_default_store()
    peer, name = rank ^ 1, f"{make}/{dist.get_process_group_ranks(group)}"
    received = Room.of(transport, 4 << 20).tensor(1 << 20)
    if rank % 2:
        store.wait([f"{name}/{peer}"])
    sent = torch.full((1 << 20,), float(rank))
    handle = start(transport, [Parcel(peer, sent, received)], [Parcel(peer, received)])
    store.set(f"{name}/{rank}", "")
    alive = weakref.ref(sent)
    del sent
    gc.collect()
    assert alive() is not None
    handle.wait()
    gc.collect()
    assert alive() is None
    assert (received == peer).all()


def refusal(make: Make, group: dist.ProcessGroup) -> None:
    """A tensor with holes is refused, and not counted as sent."""
    transport, peer = make(group, TIMEOUT_S), (dist.get_rank(group) + 1) % dist.get_world_size(group)
    place = Room.of(transport, 64).tensor(3, 4)
    with pytest.raises(ValueError, match="a parcel must be contiguous, got strides"):
        start(transport, [Parcel(peer, torch.zeros(4, 4).t()[1:], place)], [])
    assert transport.sent_bytes == 0


def reuse(make: Make, group: dist.ProcessGroup) -> None:
    """While a transfer fills a slot, the transport refuses all other uses of it. After the wait it is free again."""
    transport, peer = make(group, TIMEOUT_S), dist.get_rank(group) ^ 1
    room = Room.of(transport, 128)
    slot, other = room.tensor(16), room.tensor(4)
    first = start(transport, [Parcel(peer, torch.ones(16), slot)], [Parcel(peer, slot)])
    for sends, receives in (
        ([], [Parcel(peer, slot[4:8])]),
        ([Parcel(peer, slot[4:8], other)], []),
        ([], [Parcel(peer, other), Parcel(peer, other)]),
    ):
        with pytest.raises(InvalidInput, match=r"parcel\.tensor: expected memory that no transfer under way fills"):
            start(transport, sends, receives)
    first.wait()
    start(transport, [Parcel(peer, torch.full((16,), 2.0), slot)], [Parcel(peer, slot)]).wait()
    assert (slot == 2).all()


def wrong_size(make: Make, group: dist.ProcessGroup) -> None:
    """Send one byte too many and one too few, on one transport each, because a transport is unusable afterwards.

    The receiver fails, and nothing is delivered.
    """
    rank, peer = dist.get_rank(group), dist.get_rank(group) ^ 1
    for sent_bytes in (7, 9):
        transport = make(group, SHORT_S)
        received = Room.of(transport, 16).tensor(8, dtype=torch.uint8)
        sent = torch.ones(sent_bytes, dtype=torch.uint8)
        if rank % 2:
            with contextlib.suppress(RelibraError):  # a sender may notice, too
                start(transport, [Parcel(peer, sent, received)], []).wait()
        else:
            with pytest.raises(RelibraError, match=rf"ranks \[{peer}\] of the group did not send or take experts in"):
                start(transport, [], [Parcel(peer, received)]).wait()
        dist.barrier(group)  # to the others, a rank that has dropped its transport is gone
        assert not received.any()


def relays(make: Make, group: dist.ProcessGroup) -> None:
    """Relay a chain through all ranks in one call, or refuse it if the transport does not relay."""
    rank, world, transport = dist.get_rank(group), dist.get_world_size(group), make(group, TIMEOUT_S)
    tensor = Room.of(transport, 4 << 20).tensor(1 << 20)
    if not rank:
        tensor.copy_(torch.arange(1.0 * (1 << 20)))
    if not transport.relays:
        own = [Parcel(rank ^ 1, tensor)]
        with pytest.raises(InvalidInput, match=r"parcel\.tensor"):
            start(transport, own, own)
        return
    ahead = [Parcel(rank + 1, tensor, tensor)] if rank + 1 < world else []
    behind = [Parcel(rank - 1, tensor)] if rank else []
    start(transport, ahead, behind).wait()
    assert torch.equal(tensor, torch.arange(1.0 * (1 << 20)))


def random_cell(rng: np.random.Generator, world: int) -> tuple[Copy, ...]:
    """Return the copies of two experts, each on any number of other ranks."""
    copies, slots = list[Copy](), [0] * world
    for home, slot in np.ndindex(world, 2):
        others = [rank for rank in range(world) if rank != home]
        for destination in rng.permutation(others)[: int(rng.integers(0, world))].tolist():
            copies.append(Copy(home, slot, destination, slots[destination]))
            slots[destination] += 1
    return tuple(copies)


class Cell:
    """The experts of one random cell that travel to this rank, and what returns. Every value encodes its origin."""

    def __init__(self, transport: ExpertTransport, room: Room, copies: tuple[Copy, ...], turn: int, size: int) -> None:
        self._copies, self._rank, self._turn = copies, transport.rank, turn
        self._homes = [torch.full((size,), self._value(transport.rank, slot)) for slot in range(2)]
        num_slots = max((copy.destination_slot + 1 for copy in copies), default=0)
        self._slots = [room.tensor(size) for _ in range(num_slots)]
        self._sent = [torch.full((size,), self._value(transport.rank, -1 - slot)) for slot in range(num_slots)]
        self._arrivals = [room.tensor(size) for _ in copies]
        self.handles: list[Handle] = Fetch.of(
            transport, copies, lambda slot: [self._homes[slot]], lambda slot: [self._slots[slot]]
        ).start()
        arrivals = self._arrivals
        self.handles.append(
            Return.of(transport, copies, lambda copy: [arrivals[copy]]).start(lambda slot: [self._sent[slot]])
        )

    def num_wrong(self) -> int:
        for handle in self.handles:
            handle.wait()
        wrong = 0
        for copy, arrival in zip(self._copies, self._arrivals, strict=True):
            if copy.destination_rank == self._rank:
                want = self._value(copy.source_rank, copy.source_slot)
                wrong += not bool((self._slots[copy.destination_slot] == want).all())
            if copy.source_rank == self._rank:
                want = self._value(copy.destination_rank, -1 - copy.destination_slot)
                wrong += not bool((arrival == want).all())
        return wrong

    def _value(self, rank: int, slot: int) -> float:
        return self._turn * 1000.0 + rank * 100.0 + slot


def schedules(make: Make, group: dist.ProcessGroup) -> None:
    """Move random cells there and back, several at once, and wait for them in another order on every rank."""
    rng, own = np.random.default_rng(3), np.random.default_rng(dist.get_rank(group))
    transport, num_wrong, num_copies = make(group, TIMEOUT_S), 0, 0
    rooms = [transport.memory(2 << 20, torch.get_default_device()) for _ in range(NUM_UNDER_WAY)]
    under_way = dict[int, Cell]()
    for turn in range(NUM_CELLS):
        copies, room = random_cell(rng, transport.num_ranks), turn % NUM_UNDER_WAY
        num_copies += len(copies)
        if room in under_way:
            num_wrong += under_way.pop(room).num_wrong()
        under_way[room] = Cell(transport, Room(rooms[room]), copies, turn, size=3 << 12 if turn % 100 == 0 else 5)
        while len(under_way) > int(own.integers(0, NUM_UNDER_WAY)):
            num_wrong += under_way.pop(int(own.choice(list(under_way)))).num_wrong()
    assert num_wrong + sum(cell.num_wrong() for cell in under_way.values()) == 0
    assert num_copies > 500
