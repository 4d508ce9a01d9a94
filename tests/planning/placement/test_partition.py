import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning.placement.partition import align, fill, largest_groups, spread


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


def test_the_objective_is_the_largest_group_of_every_row():
    load_ME = np.array([[1, 2, 30, 4], [50, 6, 7, 8]])
    assert largest_groups(load_ME, np.array([0, 0, 1, 1], dtype=np.int32), 2) == 34 + 56
