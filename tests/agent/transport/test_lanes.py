"""Parcels in parts, and the pipes through which records travel."""

import os

import torch
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.transport.lanes import Item, Kind, Lane, Pipes, Record


class Nobody:
    """A receipt that ignores all news."""

    def done(self, peer: int) -> None: ...

    def failed(self, peer: int, why: str) -> None: ...


def item(size: int, turn: int = 0, source: Item | None = None) -> Item:
    return Item(Nobody(), torch.arange(size).to(torch.uint8), None, turn=turn, source=source)


@given(st.integers(0, 100), st.integers(1, 40))
def test_the_parts_of_a_parcel_are_the_parcel(size: int, chunk_bytes: int) -> None:
    """There is at least one part, so that an empty parcel arrives, too."""
    parcel, parts = item(size), list[torch.Tensor]()
    while not parts or not parcel.is_through:
        parts.append(parcel.next_part(chunk_bytes))
        parcel.offset += chunk_bytes
    assert torch.equal(torch.cat(parts), parcel.data)
    assert len(parts) == max(1, -(-size // chunk_bytes))


@given(st.integers(0, 100), st.integers(1, 40), st.integers(0, 120))
def test_a_relayed_part_is_there_when_its_last_byte_is(size: int, chunk_bytes: int, arrived: int) -> None:
    source = item(size)
    source.offset = arrived
    relayed = item(size, source=source)
    while relayed.has_part(chunk_bytes) and not relayed.is_through:
        relayed.offset += chunk_bytes
    assert min(relayed.offset, size) <= arrived
    assert relayed.is_through or min(relayed.offset + chunk_bytes, size) > arrived


def test_a_lane_offers_what_can_be_filled() -> None:
    lane = Lane(to_peer=torch.zeros(2, 4, dtype=torch.uint8), from_peer=torch.zeros(2, 4, dtype=torch.uint8))
    assert lane.next_turn is None
    lane.outgoing.append(item(9, turn=7, source=item(9)))
    assert lane.next_turn is None
    lane.outgoing.appendleft(item(9, turn=5))
    assert lane.next_turn == 5
    lane.num_free = 0
    assert lane.next_turn is None
    lane.num_free, lane.lost = 1, "gone"
    assert lane.next_turn is None


def pipes() -> tuple[Pipes, Pipes]:
    pairs = [[os.pipe() for _ in range(2)] for _ in range(2)]  # [writer][reader]
    return tuple(  # type: ignore[return-value]
        Pipes(rank, [pairs[peer][rank][0] for peer in range(2)], [pairs[rank][peer][1] for peer in range(2)])
        for rank in range(2)
    )


def test_records_come_in_order_and_from_whom_they_are() -> None:
    one, other = pipes()
    sent = [Record(Kind.FILLED, i, 10**12 + i) for i in range(100)]
    assert all(one.send(1, record) for record in sent)
    other.wake(Kind.WAKE)
    got = [pair for _ in range(2) for pair in other.read(block=False)]
    assert [record for peer, record in got if peer == 0] == sent
    assert [record for peer, record in got if peer == 1] == [Record(Kind.WAKE)]
    assert list(other.read(block=False)) == []
    one.close()
    other.close()


def test_a_rank_that_ends_is_noticed_once_after_what_it_sent() -> None:
    one, other = pipes()
    one.send(1, Record(Kind.TAKEN, 3))
    one.close()
    assert [pair for _ in range(3) for pair in other.read(block=False)] == [(0, Record(Kind.TAKEN, 3)), (0, None)]
    assert not other.send(0, Record(Kind.WAKE))
    other.close()
