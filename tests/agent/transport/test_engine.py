"""Two engines in one process, with lanes between them."""

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relibra.agent.transport.engine import Engine, Mover
from relibra.agent.transport.lanes import CHUNKS_PER_LANE, Item, Kind, Lane, Pipes
from relibra.agent.transport.push import PushSpeed, PushSpeeds

CHUNK_BYTES, TIMEOUT_S = 8, 20.0


class Receipt:
    """The receipt of one parcel, for which a test waits."""

    def __init__(self, log: list[str], name: str) -> None:
        self._log, self._name, self._is_over = log, name, threading.Event()
        self.why: str | None = None

    def done(self, peer: int) -> None:
        self._log.append(self._name)
        self._is_over.set()

    def failed(self, peer: int, why: str) -> None:
        self.why = why
        self._is_over.set()

    def wait(self) -> None:
        assert self._is_over.wait(TIMEOUT_S)


class Clumsy(Mover):
    """A mover that fails at chosen copies."""

    def __init__(self, poison: int | None = None) -> None:
        super().__init__(torch.device("cpu"))
        self._poison = poison

    def copy(self, into: Tensor, source: Tensor, ready: object) -> None:
        if self._poison is not None and bool((source == self._poison).any()):
            raise MemoryError("injected")
        super().copy(into, source, ready)


class Pushes(TorchDispatchMode):
    """Count the pushes by the kernel's operator."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += func is torch.ops.relibra.expert_push.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kernel_us", "is_by_kernel"), [(1.0, True), (200.0, False)])
def test_a_mover_pushes_by_the_way_that_costs_least_and_copies_by_copy_engine(
    kernel_us: float, is_by_kernel: bool
) -> None:
    speeds = PushSpeeds(
        copy_engine=PushSpeed(launch_us=100.0, bytes_per_us=1e9),
        kernel=PushSpeed(launch_us=kernel_us, bytes_per_us=1e9),
    )
    mover = Mover(torch.device("cpu"), speeds)
    into = torch.zeros(2, 50, dtype=torch.uint8)
    with Pushes() as pushes:
        mover.copy(into[0], numbers(50), mover.ready())
        assert pushes.num == 0
        mover.push(into[1], numbers(50), mover.ready())
        assert pushes.num == is_by_kernel
    assert torch.equal(into, numbers(50).expand(2, 50))


class Rank:
    """The lanes and the engine of one rank. The test starts the engine."""

    def __init__(self, inboxes: list[Tensor], pairs: list[list[tuple[int, int]]], rank: int, mover: Mover) -> None:
        world = len(inboxes)
        self.lanes = [Lane(to_peer=inboxes[peer][rank], from_peer=inboxes[rank][peer]) for peer in range(world)]
        readable = [pairs[peer][rank][0] for peer in range(world)]
        self.pipes = Pipes(rank, readable, [pairs[rank][peer][1] for peer in range(world)])
        others = [lane if peer != rank else None for peer, lane in enumerate(self.lanes)]
        self.engine, self.log, self._turn = Engine(others, self.pipes, mover), list[str](), 0
        self._has_begun = False

    def send(self, peer: int, data: Tensor, name: str = "", source: Item | None = None) -> Receipt:
        receipt = Receipt(self.log, name)
        self.lanes[peer].outgoing.append(Item(receipt, data, None, turn=self._turn, source=source))
        self._turn += 1
        return receipt

    def expect(self, peer: int, into: Tensor) -> tuple[Receipt, Item]:
        receipt = Receipt([], "")
        item = Item(receipt, into, None)
        self.lanes[peer].expected.append(item)
        return receipt, item

    def go(self) -> None:
        if not self._has_begun:
            self.engine.start()
            self._has_begun = True
        self.pipes.wake(Kind.WAKE)

    def stop(self) -> None:
        if not self._has_begun or self.engine.is_alive():
            self.go()
            self.pipes.wake(Kind.STOP)
        self.engine.join(TIMEOUT_S)
        assert not self.engine.is_alive()


def ranks(world: int, **movers: Mover) -> list[Rank]:
    inboxes = [torch.zeros(world, CHUNKS_PER_LANE, CHUNK_BYTES, dtype=torch.uint8) for _ in range(world)]
    pairs = [[os.pipe() for _ in range(world)] for _ in range(world)]  # [writer][reader]
    return [Rank(inboxes, pairs, rank, movers.get(f"of_{rank}", Clumsy())) for rank in range(world)]


@pytest.fixture
def three() -> Iterator[list[Rank]]:
    made = ranks(3)
    yield made
    for rank in made:
        rank.stop()


def numbers(size: int) -> Tensor:
    return (torch.arange(size) % 200).to(torch.uint8)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES * CHUNKS_PER_LANE, 1000])
def test_a_parcel_of_any_size_arrives(three: list[Rank], size: int) -> None:
    into = torch.zeros(size, dtype=torch.uint8)
    sent, (received, _) = three[0].send(1, numbers(size)), three[1].expect(0, into)
    for rank in three:
        rank.go()
    sent.wait()
    received.wait()
    assert torch.equal(into, numbers(size))


def test_what_comes_first_leaves_first_whoever_it_is_for(three: list[Rank]) -> None:
    """Each parcel fits into its lane, so that nothing but the turns decides the order."""
    receipts = [three[0].send(peer, numbers(CHUNK_BYTES), f"{i} to {peer}") for i, peer in enumerate((2, 1, 1, 2, 1))]
    three[0].go()
    for receipt in receipts:
        receipt.wait()
    assert three[0].log == ["0 to 2", "1 to 1", "2 to 1", "3 to 2", "4 to 1"]


def test_a_peer_that_takes_nothing_does_not_keep_the_others_waiting(three: list[Rank]) -> None:
    three[0].send(1, numbers(CHUNK_BYTES * (CHUNKS_PER_LANE + 1)))
    into = torch.zeros(1000, dtype=torch.uint8)
    sent, (received, _) = three[0].send(2, numbers(1000)), three[2].expect(0, into)
    three[0].go()
    three[2].go()
    sent.wait()
    received.wait()
    assert torch.equal(into, numbers(1000))


def test_what_is_relayed_leaves_before_all_of_it_has_arrived(three: list[Rank]) -> None:
    """The first part reaches the end of the chain before the second part is sent."""
    middle, end = torch.zeros(2 * CHUNK_BYTES, dtype=torch.uint8), torch.zeros(CHUNK_BYTES, dtype=torch.uint8)
    first, second = numbers(2 * CHUNK_BYTES).split(CHUNK_BYTES)
    _, half = three[1].expect(0, middle[:CHUNK_BYTES])
    rest, _ = three[1].expect(0, middle[CHUNK_BYTES:])
    relayed = three[1].send(2, middle[:CHUNK_BYTES], source=half)
    arrived, _ = three[2].expect(1, end)
    three[0].send(1, first)
    for rank in three:
        rank.go()
    relayed.wait()
    arrived.wait()
    assert torch.equal(end, first)
    three[0].send(1, second)
    three[0].go()
    rest.wait()
    assert torch.equal(middle, numbers(2 * CHUNK_BYTES))


@pytest.mark.parametrize("sent_bytes", [5, 7])
def test_a_parcel_of_another_size_is_refused_with_both_sizes(three: list[Rank], sent_bytes: int) -> None:
    into = torch.zeros(6, dtype=torch.uint8)
    three[0].send(1, numbers(sent_bytes) + 1)
    received, _ = three[1].expect(0, into)
    for rank in three:
        rank.go()
    received.wait()
    assert received.why == f"expected chunk 0 of a parcel of 6 bytes, got chunk 0 of one of {sent_bytes} bytes"
    assert not into.any()


def test_who_waits_for_a_rank_that_ended_is_told(three: list[Rank]) -> None:
    received, _ = three[1].expect(0, torch.zeros(9, dtype=torch.uint8))
    sent = three[1].send(0, numbers(500))
    three[1].go()
    three[0].stop()
    for receipt in (received, sent):
        receipt.wait()
        assert receipt.why == "its process has ended"


def test_what_was_sent_before_a_rank_ended_is_read(three: list[Rank]) -> None:
    sent = three[0].send(1, numbers(20))
    three[0].go()
    sent.wait()
    three[0].stop()
    into = torch.zeros(20, dtype=torch.uint8)
    received, _ = three[1].expect(0, into)
    three[1].go()
    received.wait()
    assert received.why is None
    assert torch.equal(into, numbers(20))


def test_a_copy_that_fails_fails_its_parcels_and_is_never_passed_on() -> None:
    made = ranks(3, of_1=Clumsy(poison=199))
    middle, end = torch.zeros(200, dtype=torch.uint8), torch.zeros(200, dtype=torch.uint8)
    received, item = made[1].expect(0, middle)
    made[1].send(2, middle, source=item)
    arrived, _ = made[2].expect(1, end)
    made[0].send(1, numbers(200))
    for rank in made:
        rank.go()
    received.wait()
    assert received.why == "this rank could not copy: MemoryError: injected"
    made[1].stop()
    arrived.wait()
    assert arrived.why == "its process has ended"
    for rank in (made[0], made[2]):
        rank.stop()
