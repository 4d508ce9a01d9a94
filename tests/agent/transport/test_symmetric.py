"""The protocol of pushes and signals, under every order of work that devices may choose."""

import random
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from harness.agent.driven_memory import DrivenDevice
from harness.agent.parcels import Parcel, start
from harness.agent.simulated_memory import Device, Step, run_all, simulated_node
from harness.agent.transfer_cells import transfer_cells
from relibra.agent.transport import Copy, Fetch, Handle, Return, SymmetricTransport
from relibra.errors import InvalidInput

NUM_RANKS, NUM_HOME, NUM_SLOTS = 8, 4, 24
SIZE_BYTES = 8 * 3 * NUM_SLOTS
"""Two sides of slots and the arrivals, each an int64."""


class Rank:
    """The program of one rank: fetches and returns as the agent makes them. Every value encodes its origin."""

    def __init__(self, device: Device) -> None:
        self._device, self.wrong = device, list[str]()
        self._transport = SymmetricTransport(device)
        self._sides = self._transport.memory(SIZE_BYTES, torch.device("cpu")).view(torch.int64).view(3, NUM_SLOTS)
        self._homes, self._gradients = (torch.zeros(num, dtype=torch.int64) for num in (NUM_HOME, NUM_SLOTS))
        self._returning: tuple[Handle, int, Sequence[Copy]] | None = None

    def run(self, turn: int, copies: tuple[Copy, ...]) -> None:
        """Queue a cell: fetch its weights, while the gradients of the last cell return, and then return its own."""
        rank, side = self._device.rank, self._sides[turn % 2]
        self._then(lambda: self._homes.copy_(values(turn, rank, NUM_HOME)))
        fetches = Fetch.of(
            self._transport, copies, lambda slot: [self._homes[slot : slot + 1]], lambda slot: [side[slot : slot + 1]]
        ).start()
        self.settle()
        for handle in fetches:
            handle.wait()
        own = [copy for copy in copies if copy.destination_rank == rank]
        for copy in own:
            want = values(turn, copy.source_rank, NUM_HOME)[copy.source_slot]
            self._expect(f"weights {turn} {copy}", side, copy.destination_slot, want)
        self._then(lambda: self._gradients.copy_(-values(turn, rank, NUM_SLOTS)))
        transfers = Return.of(self._transport, copies, lambda copy: [self._sides[2][copy : copy + 1]])
        returning = transfers.start(lambda slot: [self._gradients[slot : slot + 1]])
        self._returning = returning, turn, copies

    def settle(self) -> None:
        """Wait for the gradients under way."""
        if self._returning is None:
            return
        handle, turn, copies = self._returning
        handle.wait()
        for i, copy in enumerate(copies):
            if copy.source_rank == self._device.rank:
                want = -values(turn, copy.destination_rank, NUM_SLOTS)[copy.destination_slot]
                self._expect(f"gradients {turn} {copy}", self._sides[2], i, want)
        self._returning = None

    def _then(self, run: Callable[[], object]) -> None:
        self._device.current.queue(Step(run))

    def _expect(self, what: str, memory: Tensor, index: int, want: Tensor) -> None:
        def check() -> None:
            if memory[index] != want:
                self.wrong.append(f"{what}: expected {int(want)}, got {int(memory[index])}")

        self._then(check)


def values(turn: int, rank: int, num: int) -> Tensor:
    return 10_000 * (turn + 1) + 100 * rank + torch.arange(num)


@pytest.mark.parametrize(("num_queues", "kind"), [(1, Device), (2, Device), (8, Device), (2, DrivenDevice)])
@given(st.lists(transfer_cells(), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_S5_no_order_of_work_loses_doubles_or_mixes_up_a_parcel(
    num_queues: int, kind: type[Device], cells: list[tuple[Copy, ...]], seed: int
) -> None:
    """Slots and arrivals are filled again in every cell, homes change, and relays wait.

    With one queue, as under CUDA_DEVICE_MAX_CONNECTIONS=1, a stream that waits for a signal holds up all others. Driven
    devices do what calls of the CUDA driver say.
    """
    node = simulated_node(NUM_RANKS, SIZE_BYTES, num_queues, kind)
    ranks = [Rank(device) for device in node]
    for rank in ranks:
        for turn, copies in enumerate(cells):
            rank.run(turn, copies)
        rank.settle()
    assert run_all(node, random.Random(seed).randrange) == {}
    assert [rank.wrong for rank in ranks] == [[]] * NUM_RANKS


@pytest.mark.parametrize("kind", [Device, DrivenDevice])
@given(st.lists(transfer_cells(), min_size=2, max_size=3), st.integers(0, NUM_RANKS - 1), st.integers(0, 2**32 - 1))
def test_ranks_that_miss_a_dead_one_know_whom_they_wait_for(
    kind: type[Device], cells: list[tuple[Copy, ...]], dead: int, seed: int
) -> None:
    """The dead rank runs the first cell alone. A rank may wait for one that waits for the dead one."""
    node = simulated_node(NUM_RANKS, SIZE_BYTES, kind=kind)
    ranks = [Rank(device) for device in node]
    for index, rank in enumerate(ranks):
        for turn, copies in enumerate(cells[:1] if index == dead else cells):
            rank.run(turn, copies)
        rank.settle()
    stuck = run_all(node, random.Random(seed).randrange)
    missing = {dead}
    for _ in node:
        missing |= {rank for rank, peers in stuck.items() if peers & missing}
    assert stuck.keys() <= missing
    assert all(stuck.values())
    for device in node:
        if isinstance(device, DrivenDevice):  # what the watchdog says
            assert stuck.get(device.rank, set()) <= set(device.late_peers()) <= missing
    served = {rank for copies in cells[1:] for c in copies for rank in (c.source_rank, c.destination_rank)}
    assert bool(stuck) == (dead in served)
    assert [rank.wrong for rank in ranks] == [[]] * NUM_RANKS


def test_L1_a_rank_whose_sends_alone_are_stuck_names_who_does_not_take_them() -> None:
    node = simulated_node(2, 8, kind=DrivenDevice)
    first = SymmetricTransport(node[0])
    place = first.memory(8, torch.device("cpu"))
    start(first, [Parcel(1, torch.zeros(8, dtype=torch.uint8), place)], []).wait()
    assert run_all(node, lambda _: 0) == {0: {1}}
    assert node[0].late_peers() == [1]


def pair() -> tuple[SymmetricTransport, SymmetricTransport]:
    first, second = (SymmetricTransport(device) for device in simulated_node(2, 64))
    return first, second


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (None, "send.places: expected a place for each tensor of the parcel, got none"),
        (slice(0, 16), r"parcel: expected tensors of \[16\] bytes, as its places have, got \[8\]"),
        ("elsewhere", r"send.places: expected memory that `memory` of this transport returned, got a tensor elsewhere"),
    ],
)
def test_a_parcel_without_a_fitting_place_is_refused_and_leaves_nothing_behind(
    place: slice | str | None, message: str
) -> None:
    transport, _ = pair()
    memory, tensor = transport.memory(64, torch.device("cpu")), torch.zeros(8, dtype=torch.uint8)
    bad = torch.zeros_like(tensor) if place == "elsewhere" else None if place is None else memory[place]
    with pytest.raises(InvalidInput, match=message):
        start(transport, [Parcel(1, tensor, bad)], [Parcel(1, memory[:8])])
    assert transport.sent_bytes == 0
    start(transport, [Parcel(1, tensor, memory[56:])], [Parcel(1, memory[:8])])
    assert transport.sent_bytes == 8


def test_a_parcel_is_received_in_memory_of_the_transport_alone() -> None:
    transport, _ = pair()
    transport.memory(64, torch.device("cpu"))
    with pytest.raises(
        InvalidInput, match=r"receive.tensors: expected memory that `memory` of this transport returned"
    ):
        start(transport, [], [Parcel(1, torch.zeros(8))])
