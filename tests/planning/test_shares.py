import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relibra.planning.shares import WHOLE, begins, fraction_shares, fractions, tokens_of

HOME_LE = np.array([[0, 1]], dtype=np.int32)
INDEX_Q4 = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 1, 0], [1, 0, 1, 1]], dtype=np.int32)
"""Expert 0 has quotas at home and on ranks 1 and 2; all of expert 1 is on a replica, and in the next row at home."""
TOKENS_Q = np.array([5, 10, 5, 7, 3])


def test_a_fraction_is_the_quota_over_all_tokens_of_the_expert() -> None:
    fraction_Y = fractions(INDEX_Q4, TOKENS_Q, HOME_LE)
    assert fraction_Y.tolist() == [WHOLE // 2, WHOLE // 4, WHOLE]
    assert begins(INDEX_Q4[1:4], fraction_Y).tolist() == [0, WHOLE // 2, 0]
    np.testing.assert_array_equal(
        fraction_shares(INDEX_Q4, TOKENS_Q, HOME_LE, 3).to_array(), fraction_Y[:, None] + [0] * 3
    )
    assert fractions(INDEX_Q4[:0], TOKENS_Q[:0], HOME_LE).shape == (0,)


parts = st.lists(st.integers(0, WHOLE), min_size=1, max_size=5).map(
    lambda some: np.array([part * WHOLE // max(sum(some), WHOLE) for part in some])
)


@given(parts, st.integers(0, 10**6), st.integers(1, 64), st.data())
def test_S5_no_more_tokens_are_sent_than_there_are_and_all_where_nothing_stays(
    fraction_Y: np.ndarray, num_tokens: int, num_ranks: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, num_ranks - 1))
    begin_Y = np.cumsum(fraction_Y) - fraction_Y
    sent_Y = tokens_of(np.full_like(begin_Y, num_tokens), begin_Y, fraction_Y, rank, num_ranks)
    assert (sent_Y >= 0).all()
    assert sent_Y.sum() <= num_tokens
    assert np.abs(sent_Y - num_tokens * fraction_Y / WHOLE).max() <= 1
    rest = tokens_of(num_tokens, int(fraction_Y.sum()), WHOLE - int(fraction_Y.sum()), rank, num_ranks)
    assert sent_Y.sum() + rest == num_tokens


@given(parts, st.integers(1, 5), st.sampled_from([1, 2, 8, 32]))
def test_a_replica_gets_from_one_rank_what_rounding_takes_from_it_on_another(
    fraction_Y: np.ndarray, num_tokens: int, num_ranks: int
) -> None:
    begin_Y = np.cumsum(fraction_Y) - fraction_Y
    sent_Y = sum(tokens_of(num_tokens, begin_Y, fraction_Y, rank, num_ranks) for rank in range(num_ranks))
    assert np.abs(sent_Y - num_ranks * num_tokens * fraction_Y / WHOLE).max() <= 1 + 1e-9
