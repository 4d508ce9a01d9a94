"""Replicas whose cost is weighed against the balance they bring."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning.load import home_loads
from relibra.planning.replicas.node_replicas import replicate_rows


def busiest_of(index_Y2, by_rank_NX, num_ranks):
    """Return the most replicas that leave or enter one rank."""
    rank_of_E = np.empty(by_rank_NX.size, dtype=np.int64)
    rank_of_E[by_rank_NX.ravel()] = np.arange(by_rank_NX.size) // (by_rank_NX.shape[1] // num_ranks)
    ends = [rank_of_E[index_Y2[:, 0]], index_Y2[:, 1]]
    return max(int(np.bincount(end, minlength=1).max()) for end in ends)


@given(
    num_nodes=st.integers(1, 2),
    num_ranks=st.integers(2, 4),
    slots=st.integers(0, 2),
    price=st.integers(1, 400),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=150, deadline=None)
def test_a_cell_costs_no_more_than_without_replicas_or_with_all_the_balance_there_is(
    num_nodes, num_ranks, slots, price, seed
):
    rng = np.random.default_rng(seed)
    num_experts = num_nodes * num_ranks * 3
    load_ME = rng.poisson(rng.lognormal(5, 1.2, (4, num_experts))).astype(np.int64)
    by_rank_NX = rng.permutation(num_experts).reshape(num_nodes, -1)
    home_E = np.empty(num_experts, dtype=np.int32)
    home_E[by_rank_NX.ravel()] = np.arange(num_experts) // 3
    plain_M = home_loads(load_ME[:, None], home_E[None], num_nodes * num_ranks).max(axis=-1)[:, 0]

    def choose(at_price):
        limit_M, cost_M, end_M, index_Y2, _ = replicate_rows(load_ME, by_rank_NX, num_ranks, slots, price, at_price)
        of_rows = np.split(index_Y2, end_M[:-1])
        return limit_M, cost_M, np.array([busiest_of(each, by_rank_NX, num_ranks) for each in of_rows])

    balanced_M, no_cost_M, most_busy_M = choose(0)
    limit_M, cost_M, busiest_M = choose(price)
    np.testing.assert_array_equal(no_cost_M, balanced_M)
    np.testing.assert_array_equal(cost_M, limit_M + price * busiest_M)
    assert (cost_M <= balanced_M + price * most_busy_M).all()
    assert (cost_M <= plain_M).all()
    assert (limit_M >= balanced_M).all()
    assert (busiest_M <= most_busy_M).all()


def test_the_last_of_the_balance_is_left_where_replicas_cost_more():
    """The mean is 100. One replica of 60 tokens brings 180 down to 120, and the rest would need two more."""
    load_ME = np.array([[180, 60, 80, 80]])
    by_rank_NX = np.arange(4)[None]

    def choose(price):
        limit_M, _, _, index_Y2, _ = replicate_rows(load_ME, by_rank_NX, 4, 2, 1, price)
        return limit_M[0], len(index_Y2)

    assert choose(0) == (100, 3)
    assert choose(5) == (100, 3)
    assert choose(15) == (120, 1)
    assert choose(100) == (180, 0)
