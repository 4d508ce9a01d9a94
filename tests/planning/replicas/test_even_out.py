import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning.replicas.even_out import add_local, even_out, parts

_HOME_E = np.array([0, 0, 1, 1, 2, 2, 3, 3], dtype=np.int32)
"""Two nodes of two ranks, with two experts each."""
_EXPERT_RX = np.arange(8).reshape(4, 2)


def _choice(seed):
    """Return loads of two rows, their crossing parts, and two replicas in each row."""
    rng = np.random.default_rng(seed)
    crossing_ME, local_ME = rng.integers(0, 100, (2, 2, 8))
    index_Y2 = np.array([[rng.integers(0, 2), 1], [rng.integers(6, 8), 2]] * 2, dtype=np.int32)
    row_Y = np.array([0, 0, 1, 1])
    crossing_Y = rng.integers(0, crossing_ME[row_Y, index_Y2[:, 0]] + 1)
    tokens_Y = crossing_Y + rng.integers(0, local_ME[row_Y, index_Y2[:, 0]] + 1)
    return crossing_ME + local_ME, crossing_ME, np.array([2, 4]), index_Y2, tokens_Y, crossing_Y


def _sums_MR(whole_ME, end_M, index_Y2, part_Y):
    sum_MR = np.zeros((2, 4), dtype=np.int64)
    np.add.at(sum_MR.T, _HOME_E, whole_ME.T)
    row_Y = np.repeat(np.arange(2), np.diff(end_M, prepend=0))
    np.add.at(sum_MR, (row_Y, _HOME_E[index_Y2[:, 0]]), -part_Y)
    np.add.at(sum_MR, (row_Y, index_Y2[:, 1]), part_Y)
    return sum_MR


@given(seed=st.integers(0, 10**6), is_of_tokens=st.booleans(), least=st.integers(0, 30))
@settings(max_examples=80, deadline=None)
def test_one_sum_is_evened_out_and_the_other_stays(seed, is_of_tokens, least):
    load_ME, crossing_ME, end_M, index_Y2, tokens_Y, crossing_Y = _choice(seed)
    least = min(least, int(tokens_Y.min()))
    new_tokens_Y, new_crossing_Y = tokens_Y.copy(), crossing_Y.copy()
    even_out(load_ME, crossing_ME, _HOME_E, 4, end_M, index_Y2, new_tokens_Y, new_crossing_Y, least, is_of_tokens)
    kept, other = (
        ((tokens_Y, new_tokens_Y), (crossing_ME, crossing_Y, new_crossing_Y))
        if is_of_tokens
        else ((crossing_Y, new_crossing_Y), (load_ME, tokens_Y, new_tokens_Y))
    )
    np.testing.assert_array_equal(*kept)
    whole_ME, before_Y, after_Y = other
    before_M, after_M = (_sums_MR(whole_ME, end_M, index_Y2, each).max(axis=1) for each in (before_Y, after_Y))
    assert (after_M <= before_M).all()
    row_Y = np.array([0, 0, 1, 1])
    assert (new_tokens_Y >= least).all()
    assert ((new_crossing_Y >= 0) & (new_crossing_Y <= new_tokens_Y)).all()
    assert (new_crossing_Y <= crossing_ME[row_Y, index_Y2[:, 0]]).all()
    assert (new_tokens_Y - new_crossing_Y <= (load_ME - crossing_ME)[row_Y, index_Y2[:, 0]]).all()


@given(seed=st.integers(0, 10**6), slots=st.integers(1, 3), least=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_added_replicas_have_local_tokens_alone_and_relieve_the_slowest_rank(seed, slots, least):
    load_ME, crossing_ME, end_M, index_Y2, tokens_Y, crossing_Y = _choice(seed)
    choice = end_M, index_Y2, tokens_Y, crossing_Y
    new_end_M, new_index_Y2, new_tokens_Y, new_crossing_Y = add_local(
        load_ME, crossing_ME, _EXPERT_RX, 2, slots, *choice, least
    )
    assert new_crossing_Y.sum() == crossing_Y.sum()
    before_M = _sums_MR(load_ME, end_M, index_Y2, tokens_Y).max(axis=1)
    after_M = _sums_MR(load_ME, new_end_M, new_index_Y2, new_tokens_Y).max(axis=1)
    has_more_M = np.diff(new_end_M, prepend=0) > 2
    assert (after_M[has_more_M] <= before_M[has_more_M]).all()
    for row, begin in enumerate((0, new_end_M[0])):
        index_X2, tokens_X = new_index_Y2[begin : new_end_M[row]], new_tokens_Y[begin : new_end_M[row]]
        assert len(np.unique(index_X2, axis=0)) == len(index_X2)
        assert np.bincount(index_X2[:, 1], minlength=4).max() <= slots
        assert (tokens_X[2:] >= least).all()
        assert (_HOME_E[index_X2[:, 0]] // 2 == index_X2[:, 1] // 2).all()
        assert (np.bincount(index_X2[:, 0], tokens_X, 8) <= load_ME[row]).all()


@pytest.mark.parametrize(("part", "expected"), [([20, 30], [60, 90]), ([7, 1], [21, 3]), ([1, 1], [3, 3])])
def test_parts_of_one_sum_are_the_same_parts_of_the_other(part, expected):
    index_Y2 = np.array([[0, 1], [0, 2]], dtype=np.int32)
    result_Y = parts(np.array([[150]]), np.array([[50]]), np.array([2]), index_Y2, np.array(part))
    assert result_Y.tolist() == expected
