from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning.partition import align, fill, improve, spread


def _cost(load_ME, group_E, num_groups):
    return sum(max(row_E[group_E == group].sum() for group in range(num_groups)) for row_E in load_ME)


def _loads(seed, num_rows, num_experts):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.lognormal(5, 1, num_experts), (num_rows, num_experts))


@given(seed=st.integers(0, 10**6), num_groups=st.integers(1, 6), size=st.integers(1, 5), num_rows=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_search_keeps_group_sizes_and_never_worsens(seed, num_groups, size, num_rows):
    load_ME = _loads(seed, num_rows, num_groups * size)
    start_E = spread(load_ME.sum(axis=0), num_groups)
    found_E = improve(load_ME, start_E, num_groups, seed, 2000)
    assert (np.bincount(start_E, minlength=num_groups) == size).all()
    assert (np.bincount(found_E, minlength=num_groups) == size).all()
    assert _cost(load_ME, found_E, num_groups) <= _cost(load_ME, start_E, num_groups)


@pytest.mark.parametrize("seed", range(8))
def test_search_finds_the_best_of_all_splits_in_two(seed):
    load_ME = _loads(seed, 4, 10)
    every = (np.isin(np.arange(10), half).astype(np.int32) for half in combinations(range(10), 5))
    best = min(_cost(load_ME, group_E, 2) for group_E in every)
    found_E = improve(load_ME, spread(load_ME.sum(axis=0), 2), 2, seed, 20_000)
    assert _cost(load_ME, found_E, 2) == best


def test_search_beats_the_greedy_split_it_starts_from():
    load_ME = _loads(1, 16, 64)
    start_E = spread(load_ME.sum(axis=0), 4)
    ideal = load_ME.sum() / 4
    before = _cost(load_ME, start_E, 4) / ideal - 1
    after = _cost(load_ME, improve(load_ME, start_E, 4, 0, 100_000), 4) / ideal - 1
    assert after < before / 2


def test_S8_search_gives_the_same_split_for_the_same_seed():
    load_ME = _loads(2, 8, 32)
    start_E = spread(load_ME.sum(axis=0), 4)
    first_E, again_E, other_E = (improve(load_ME, start_E, 4, seed, 5000) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first_E, again_E)
    assert (first_E != other_E).any()


def test_spread_takes_the_heaviest_first():
    np.testing.assert_array_equal(spread(np.array([1, 9, 5, 4]), 2), [0, 0, 1, 1])


def test_fill_respects_room_and_load():
    group_X = fill(np.array([5, 3, 1]), np.array([10, 0, 4]), np.array([1, 1, 1]))
    np.testing.assert_array_equal(group_X, [1, 2, 0])


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_align_renumbers_groups_and_nothing_else(seed, num_groups, size):
    rng = np.random.default_rng(seed)
    group_E, previous_E = ((rng.permutation(num_groups * size) // size).astype(np.int32) for _ in range(2))
    aligned_E = align(group_E, previous_E, num_groups)
    pairs = set(zip(group_E.tolist(), aligned_E.tolist(), strict=True))
    assert len(pairs) == num_groups == len(set(aligned_E.tolist()))


def test_align_undoes_a_renumbering():
    previous_E = np.array([0, 0, 1, 1, 2, 2], dtype=np.int32)
    np.testing.assert_array_equal(align((previous_E + 1) % 3, previous_E, 3), previous_E)
