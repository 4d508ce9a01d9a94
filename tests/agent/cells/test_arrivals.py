"""The places of arriving gradients: enough for every window, and none for two gradients."""

from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.transfer_cells import transfer_cells
from relibra.agent.cells.arrivals import Arrivals
from relibra.agent.cells.gradient_windows import TensorSize, windows_of
from relibra.agent.transport import Copy

NUM_RANKS, NUM_SLOTS = 8, 24
DTYPES = [torch.bfloat16, torch.float32]


def arrivals_of(shapes: list[tuple[int, torch.dtype]], window_bytes: int, *, needs_places: bool = True) -> Arrivals:
    parameters = [torch.nn.Parameter(torch.zeros(num, dtype=dtype)) for num, dtype in shapes]
    transport: Any = SimpleNamespace(
        rank=0,
        num_ranks=NUM_RANKS,
        needs_places=needs_places,
        memory=lambda size_bytes, device: torch.zeros(size_bytes, dtype=torch.uint8, device=device),
    )
    experts: Any = SimpleNamespace(parameters=[parameters])
    return Arrivals(transport, [experts], NUM_SLOTS, None, torch.device("cpu"), window_bytes)


@given(
    transfer_cells(),
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from(DTYPES)), min_size=1, max_size=3),
    st.sampled_from([24 * 16, 1000, 1 << 20]),
    st.booleans(),
)
def test_gradients_of_windows_under_way_have_places_of_their_own(
    copies: tuple[Copy, ...], shapes: list[tuple[int, torch.dtype]], window_bytes: int, needs_places: bool
) -> None:
    arrivals = arrivals_of(shapes, window_bytes, needs_places=needs_places)
    dtypes = [dtype for _, dtype in shapes]
    windows = windows_of(copies, tuple(TensorSize(num, dtype.itemsize) for num, dtype in shapes), window_bytes)
    before = dict[int, list[tuple[int, int]]]()
    for window, places in zip(windows, arrivals.places(windows, dtypes), strict=True):
        assert [tile for tile, _ in places] == [each for each in window if needs_places or each.home_rank == 0]
        taken = {rank: list[tuple[int, int]]() for rank in range(NUM_RANKS)}
        for tile, room in places:
            assert room.gradients_RN.shape == (len(tile.copies), tile.end - tile.begin)
            for row, gradient in zip(room.rows, room.gradients_RN, strict=True):
                assert row.is_contiguous()
                assert row.data_ptr() == gradient.data_ptr()
                assert row.dtype == dtypes[tile.tensor]
                assert len(row) == tile.end - tile.begin
                mine = row.data_ptr(), row.data_ptr() + row.nbytes
                assert mine[0] % 16 == 0
                others = taken[tile.home_rank] + before.get(tile.home_rank, [])
                assert all(mine[1] <= begin or end <= mine[0] for begin, end in others)
                taken[tile.home_rank].append(mine)
        before = taken


def test_S7_a_rank_keeps_what_its_largest_cell_needs_until_it_releases_it() -> None:
    """Places from before the memory grew are not to be used any more."""
    arrivals = arrivals_of([(1000, torch.float32)], 1 << 20, needs_places=False)
    assert arrivals.size_bytes == 0
    for num_replicas, size_bytes, version in ((2, 8000, 1), (5, 20000, 2), (1, 20000, 2)):
        copies = tuple(Copy(0, 0, rank, 0) for rank in range(1, 1 + num_replicas))
        ((_, room),) = arrivals.places(windows_of(copies, (TensorSize(1000, 4),), 1 << 20), [torch.float32])[0]
        assert room.gradients_RN.shape == (num_replicas, 1000)
        assert (arrivals.size_bytes, arrivals.version) == (size_bytes, version)
    elsewhere = windows_of((Copy(1, 0, 0, 0),), (TensorSize(1000, 4),), 1 << 20)
    assert arrivals.places(elsewhere, [torch.float32]) == [[]]
    arrivals.release()
    assert (arrivals.size_bytes, arrivals.version) == (0, 3)


def test_memory_is_as_small_as_the_gradients_of_a_cell_allow() -> None:
    num_replicas = NUM_SLOTS * (NUM_RANKS - 1)
    assert arrivals_of([(1000, torch.float32)], 1 << 20).size_bytes == 4000 * num_replicas
    assert arrivals_of([(1000, torch.float32)], 16_000).size_bytes == 2 * 16_000
