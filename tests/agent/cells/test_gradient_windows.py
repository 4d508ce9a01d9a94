"""The windows in which gradients arrive at their homes: everything once, in order, and never too much at a time."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.transfer_cells import transfer_cells
from relibra.agent.cells.gradient_windows import TensorSize, Tile, padded_bytes, windows_of, windows_on
from relibra.agent.transport import Copy

SIZES = st.lists(st.builds(TensorSize, st.integers(1, 300), st.sampled_from([2, 4])), min_size=1, max_size=3).map(tuple)
MANY = 24 * 16
"""Room for 16 bytes of every replica that a cell may have here."""


def bytes_of(tile: Tile, sizes: tuple[TensorSize, ...]) -> int:
    return padded_bytes((tile.end - tile.begin) * sizes[tile.tensor].element_bytes) * len(tile.copies)


@given(transfer_cells(), SIZES, st.integers(MANY, 9000))
def test_S5_every_element_of_every_replica_arrives_once_and_in_the_order_of_ranks(
    copies: tuple[Copy, ...], sizes: tuple[TensorSize, ...], window_bytes: int
) -> None:
    arrived = Counter[tuple[int, int, int]]()
    for tile in (tile for window in windows_of(copies, sizes, window_bytes) for tile in window):
        assert [copies[i].destination_rank for i in tile.copies] == sorted(
            copies[i].destination_rank for i in tile.copies
        )
        for i in tile.copies:
            assert copies[i][:2] == (tile.home_rank, tile.home_slot)
            arrived.update((i, tile.tensor, element) for element in range(tile.begin, tile.end))
    wanted = {(i, t, e) for i in range(len(copies)) for t, size in enumerate(sizes) for e in range(size.num_elements)}
    assert arrived == Counter(wanted)


@given(transfer_cells(), SIZES, st.integers(MANY, 9000))
def test_S5_every_rank_sends_the_parts_of_its_replicas(
    copies: tuple[Copy, ...], sizes: tuple[TensorSize, ...], window_bytes: int
) -> None:
    windows = windows_of(copies, sizes, window_bytes)
    sent = list[tuple[Copy, Tile]]()
    for rank in range(8):
        of_rank = windows_on(rank, copies, sizes, window_bytes)
        assert [window.tiles for window in of_rank] == list(windows)
        for slot, tile in (each for window in of_rank for each in window.leaving):
            sent.append((Copy(tile.home_rank, tile.home_slot, rank, slot), tile))
    wanted = [(copies[i], tile) for window in windows for tile in window for i in tile.copies]
    assert sorted(sent) == sorted(wanted)


@given(transfer_cells(), SIZES, st.integers(MANY, 9000))
def test_S7_no_rank_takes_more_than_a_window_at_a_time(
    copies: tuple[Copy, ...], sizes: tuple[TensorSize, ...], window_bytes: int
) -> None:
    windows = windows_of(copies, sizes, window_bytes)
    of_expert = sum(padded_bytes(size.num_elements * size.element_bytes) for size in sizes)
    most = max(Counter(copy.source_rank for copy in copies).values(), default=0) * of_expert
    for window in windows:
        taken = Counter[int]()
        for tile in window:
            taken[tile.home_rank] += bytes_of(tile, sizes)
            assert tile.begin * sizes[tile.tensor].element_bytes % 16 == 0, "kernels read whole vectors"
        assert 0 < max(taken.values()) <= window_bytes
    if most <= window_bytes:
        assert len(windows) == bool(copies)
        assert all(tile.end - tile.begin == sizes[tile.tensor].num_elements for window in windows for tile in window)


def test_S7_the_experts_of_deepseek_v3_arrive_in_a_few_windows() -> None:
    """On a node of eight ranks with two slots, 14 replicas of one rank's experts are 2.5 GB in fp32."""
    copies = tuple(Copy(0, slot, rank, slot) for slot in range(2) for rank in range(1, 8))
    sizes = (TensorSize(2 * 2048 * 7168, 4), TensorSize(2048 * 7168, 4))
    windows = windows_of(copies, sizes, 1 << 28)
    arriving_bytes = [sum(bytes_of(tile, sizes) for tile in window) for window in windows]
    assert sum(arriving_bytes) == 14 * 3 * 2048 * 7168 * 4
    assert len(windows) == 10
    assert max(map(len, windows)) <= 3


def test_S7_a_window_without_room_is_refused() -> None:
    copies = tuple(Copy(0, 0, rank, 0) for rank in range(1, 5))
    with pytest.raises(ValueError, match="expected a window of 64 bytes or more, got 63"):
        windows_of(copies, (TensorSize(8, 4),), 63)
