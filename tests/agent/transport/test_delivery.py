"""The sends, receives and pulls of all ranks of a node fit together, and bring experts where they belong."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.agent.transfer_cells import transfer_cells
from relibra.agent.transport import Copy, Fetch, FrozenLayer, Pull, Receive, Return, Send, transfer_schedule

NUM_RANKS, FIRST_EXPERT = 8, 100
Lists = defaultdict[tuple[int, int], list[Tensor]]
"""The tensors in order, by (sending rank, receiving rank)."""


class OneRank:
    """A transport that records what it is asked to move."""

    num_ranks, sent_bytes = NUM_RANKS, 0

    def __init__(self, rank: int, relays: bool, sent: Lists, received: Lists, places: Lists | None = None) -> None:
        self.rank, self.relays, self._sent, self._received = rank, relays, sent, received
        self.needs_places, self._places = places is not None, places
        self.num_calls = 0

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> "OneRank":
        self._to = [send.peer for send in sends]
        for peer, places in sends:
            if self._places is not None:
                assert places is not None
                self._places[self.rank, peer] += places
        for peer, tensors in receives:
            self._received[peer, self.rank] += tensors
        return self

    def start(self, sent: Sequence[Sequence[Tensor]]) -> "OneRank":
        self.num_calls += 1
        for peer, tensors in zip(self._to, sent, strict=True):
            self._sent[self.rank, peer] += tensors
        return self

    def wait(self) -> None: ...


class Host:
    """Host weights that fill pulled tensors at once, with the name of the expert."""

    def start(self, pulls: Sequence[Pull]) -> "Host":
        for peer, expert, (into,) in pulls:
            into.fill_(named(peer, expert - FIRST_EXPERT))
        return self

    def wait(self) -> None: ...


def named(rank: int, slot: int) -> float:
    return rank * 100.0 + slot


def move(sent: Lists, received: Lists, num_copies: int) -> None:
    """Copy what each list says, as often as the longest chain of relays needs. The lists of both ends must match."""
    assert {pair: len(tensors) for pair, tensors in sent.items()} == {pair: len(t) for pair, t in received.items()}
    for _ in range(num_copies):
        for pair, sources in sent.items():
            for source, into in zip(sources, received[pair], strict=True):
                into.copy_(source)


def memory(copies: tuple[Copy, ...]) -> dict[tuple[int, int], Tensor]:
    """Return memory for every redundant slot that a copy fills."""
    return {(copy.destination_rank, copy.destination_slot): torch.zeros(()) for copy in copies}


@given(transfer_cells(), st.booleans(), st.just(0.0) | st.floats(0.1, 10))
def test_S5_weights_come_to_every_slot_from_peers_or_the_host(
    copies: tuple[Copy, ...], relays: bool, host_speed: float
) -> None:
    sent, received, slots = Lists(list), Lists(list), memory(copies)
    frozen = FrozenLayer(Host(), FIRST_EXPERT, host_speed) if host_speed else None
    for rank in range(NUM_RANKS):
        transport = OneRank(rank, relays, sent, received)
        homes = [torch.tensor(named(rank, slot)) for slot in range(4)]
        fetch = Fetch.of(
            transport,
            copies,
            home=lambda slot, homes=homes: [homes[slot]],
            slot=lambda slot, rank=rank: [slots[rank, slot]],
            frozen=frozen,
        )
        assert transport.num_calls == 0
        fetch.start()
        assert transport.num_calls == 1, "all ranks call equally often, also with nothing to move"
    schedule = transfer_schedule(copies, relays=relays, host_speed=host_speed)
    assert sum(map(len, sent.values())) == len(copies) - len(schedule.from_host)
    move(sent, received, len(copies))
    for copy in copies:
        assert slots[copy.destination_rank, copy.destination_slot] == named(copy.source_rank, copy.source_slot)


@given(transfer_cells(), st.booleans())
def test_S5_gradients_come_home_straight_and_in_their_own_room(copies: tuple[Copy, ...], relays: bool) -> None:
    sent, received = Lists(list), Lists(list)
    arrivals = [torch.zeros(()) for _ in copies]
    for rank in range(NUM_RANKS):
        transport = OneRank(rank, relays, sent, received)
        returning = Return.of(transport, copies, lambda copy: [arrivals[copy]])
        assert transport.num_calls == 0
        returning.start(lambda slot, rank=rank: [torch.tensor(named(rank, slot))])
        assert transport.num_calls == 1
    move(sent, received, 1)
    for copy, arrival in zip(copies, arrivals, strict=True):
        assert arrival == named(copy.destination_rank, copy.destination_slot)


def test_ranks_begin_to_send_gradients_to_different_homes() -> None:
    """Every rank has replicas of experts of three other ranks."""
    copies = tuple(Copy(home, 0, (home + ahead) % NUM_RANKS, ahead) for home in range(NUM_RANKS) for ahead in (1, 2, 3))
    orders = list[list[int]]()
    for rank in range(NUM_RANKS):
        sent = Lists(list)
        transport = OneRank(rank, False, sent, Lists(list))
        Return.of(transport, copies, lambda _: [torch.zeros(())]).start(lambda _: [torch.zeros(())])
        orders.append([home for _, home in sent])
    for turn in zip(*orders, strict=True):
        assert len(set(turn)) == NUM_RANKS


@given(transfer_cells(), st.booleans())
def test_S5_senders_name_the_place_at_which_the_receiver_waits(copies: tuple[Copy, ...], relays: bool) -> None:
    """All ranks have the same layout, so one tensor stands for its place on every rank."""
    sent, received, places = Lists(list), Lists(list), Lists(list)
    slots, arrivals = torch.arange(24.0), torch.arange(24.0)
    for rank in range(NUM_RANKS):
        transport = OneRank(rank, relays, sent, received, places)
        Fetch.of(transport, copies, home=lambda _: [torch.zeros(())], slot=lambda slot: [slots[slot]]).start()
        Return.of(transport, copies, lambda copy: [arrivals[copy]]).start(lambda _: [torch.zeros(())])
    assert places.keys() == received.keys()
    for pair, named in places.items():
        assert [place.data_ptr() for place in named] == [tensor.data_ptr() for tensor in received[pair]]
