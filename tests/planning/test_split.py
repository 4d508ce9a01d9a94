import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from harness.split_cells import Cell, cells
from relibra.planning import split
from relibra.planning.split import source_share, split_step

_EXAMPLES = settings(max_examples=150, deadline=None)


def split_of(cell: Cell) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens of each replica, and those of them that cross, by `split_step`."""
    load_E = cell.counts_RE.sum(axis=0)
    is_local_RE = cell.node_R[:, None] == cell.home_E // cell.gpus_per_node
    crossing_E = load_E - np.where(is_local_RE, cell.counts_RE, 0).sum(axis=0)
    none_Y = np.zeros_like(cell.expert_Y)
    index_Y4 = np.stack([none_Y, none_Y, cell.expert_Y, cell.rank_Y], axis=1)
    arguments = load_E[None, None], crossing_E[None, None], cell.home_E[None], index_Y4, cell.gpus_per_node
    return split_step(*arguments, len(cell.counts_RE))


def shares_of(cell: Cell) -> NDArray[np.int64]:
    """Return the share of every source rank in every replica, `[R, Y]`."""
    num_ranks = len(cell.counts_RE)
    return np.stack([source_share(cell.counts_RE, *cell.copies, cell.gpus_per_node, rank) for rank in range(num_ranks)])


def rank_loads(cell: Cell, tokens_Y: NDArray[np.int64]) -> NDArray[np.int64]:
    load_R, load_E = np.zeros(len(cell.counts_RE), dtype=np.int64), cell.counts_RE.sum(axis=0)
    np.add.at(load_R, cell.home_E, load_E)
    np.add.at(load_R, cell.rank_Y, tokens_Y)
    np.subtract.at(load_R, cell.home_E[cell.expert_Y], tokens_Y)
    return load_R


def closed_form(cell: Cell) -> int:
    """Return the smallest largest load: over all sets of ranks of a node, the tokens with no copy elsewhere over ranks.

    The sums over subsets are one zeta transform for every node.
    """
    size, best, load_E = cell.gpus_per_node, 0, cell.counts_RE.sum(axis=0)
    mask_E = 1 << (cell.home_E % size).astype(np.int64)
    np.bitwise_or.at(mask_E, cell.expert_Y, 1 << (cell.rank_Y % size).astype(np.int64))
    num_ranks_F = np.array([mask.bit_count() for mask in range(1 << size)])
    for node in range(len(cell.counts_RE) // size):
        tokens_F = np.zeros(1 << size, dtype=np.int64)
        here_E = cell.home_E // size == node
        np.add.at(tokens_F, mask_E[here_E], load_E[here_E])
        for rank in range(size):
            halves = tokens_F.reshape(-1, 2, 1 << rank)
            halves[:, 1] += halves[:, 0]
        best = max(best, int((-(-tokens_F[1:] // num_ranks_F[1:])).max()))
    return best


def takes_all(cell: Cell, limit: int) -> bool:
    """Return whether all tokens find a copy if no rank computes more than `limit`, by a maximal flow."""
    num_ranks, num_experts = cell.counts_RE.shape
    load_E = cell.counts_RE.sum(axis=0)
    source, first_rank = num_experts + num_ranks, num_experts
    sink = source + 1
    edges = [(source, expert, int(load_E[expert])) for expert in range(num_experts)]
    edges += [(expert, first_rank + int(cell.home_E[expert]), int(load_E[expert])) for expert in range(num_experts)]
    edges += [(int(e), first_rank + int(r), int(load_E[e])) for e, r in zip(cell.expert_Y, cell.rank_Y, strict=True)]
    edges += [(first_rank + rank, sink, limit) for rank in range(num_ranks)]
    begin, end, capacity = np.array(edges).T
    graph = csr_array((capacity.astype(np.int32), (begin, end)), shape=(sink + 1, sink + 1))
    return int(maximum_flow(graph, source, sink).flow_value) == int(load_E.sum())


@given(cells())
@_EXAMPLES
def test_the_slowest_rank_is_as_fast_as_the_copies_allow(cell: Cell) -> None:
    tokens_Y, _ = split_of(cell)
    assert rank_loads(cell, tokens_Y).max() == closed_form(cell)


@given(cells(max_tokens=4000))
@settings(max_examples=40, deadline=None)
def test_no_flow_of_tokens_is_better(cell: Cell) -> None:
    slowest = int(rank_loads(cell, split_of(cell)[0]).max())
    assert takes_all(cell, slowest)
    assert slowest == 0 or not takes_all(cell, slowest - 1)


@given(cells())
@_EXAMPLES
def test_S5_every_token_is_computed_once_and_crosses_if_its_source_is_elsewhere(cell: Cell) -> None:
    (tokens_Y, crossing_Y), share_RY = split_of(cell), shares_of(cell)
    assert (share_RY >= 0).all()
    np.testing.assert_array_equal(share_RY.sum(axis=0), tokens_Y)
    comes_across_RY = cell.node_R[:, None] != cell.rank_Y // cell.gpus_per_node
    np.testing.assert_array_equal((share_RY * comes_across_RY).sum(axis=0), crossing_Y)
    at_home_RE = cell.counts_RE.copy()
    np.subtract.at(at_home_RE.T, cell.expert_Y, share_RY.T)
    assert (at_home_RE >= 0).all()


@given(cells())
@_EXAMPLES
def test_a_rank_keeps_the_tokens_that_its_own_copy_takes(cell: Cell) -> None:
    (tokens_Y, crossing_Y), share_RY = split_of(cell), shares_of(cell)
    for replica, (expert, rank) in enumerate(zip(cell.expert_Y, cell.rank_Y, strict=True)):
        inside = tokens_Y[replica] - crossing_Y[replica]
        assert share_RY[rank, replica] >= min(inside, cell.counts_RE[rank, expert])


@given(cells(max_tokens=4000))
@settings(max_examples=15, deadline=None)
def test_S8_a_trainer_without_numba_computes_the_same(cell: Cell) -> None:
    names = ("_split_cells", "_source_share", "_split_cell", "_pour", "_even_out", "_overlap", "_num_kept")
    want = [*split_of(cell), *shares_of(cell)]
    with pytest.MonkeyPatch.context() as patched:
        for name in names:
            patched.setattr(split, name, getattr(split, name).py_func)
        got = [*split_of(cell), *shares_of(cell)]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


def test_S8_the_split_of_a_hot_expert_is_pinned() -> None:
    """Expert 0 has copies on all ranks of its node; both nodes send it tokens."""
    counts_RE = np.array([[100, 1, 2, 3], [90, 0, 0, 9], [10, 5, 5, 5], [0, 7, 30, 2]])
    cell = Cell(counts_RE, np.arange(4, dtype=np.int32), np.array([0], np.int32), np.array([1], np.int32), 2)
    tokens_Y, crossing_Y = split_of(cell)
    assert (tokens_Y.tolist(), crossing_Y.tolist()) == ([93], [0])
    assert shares_of(cell)[:, 0].tolist() == [3, 90, 0, 0]
