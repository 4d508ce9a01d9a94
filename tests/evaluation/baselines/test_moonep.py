import numpy as np
import pytest

from relibra.evaluation.baselines.moonep import fill_ranks


def test_the_fullest_rank_fills_the_emptiest_first_with_its_largest_expert():
    # Ranks have 900, 300 and 0 tokens, and the mean is 400: rank 2 takes all its 400 of expert 0, rank 1 the last 100.
    replica_Y3 = fill_ranks(np.array([700, 200, 300, 0, 0, 0]), 3)
    assert sorted(replica_Y3.tolist()) == [[0, 1, 100], [0, 2, 400]]


def test_balanced_ranks_get_no_replica():
    assert len(fill_ranks(np.array([5, 1, 3, 3]), 2)) == 0


@pytest.mark.parametrize("seed", range(20))
def test_every_rank_computes_equally_many_tokens_and_receives_experts_of_one_rank(seed):
    num_ranks, per_rank = 8, 4
    load_X = np.random.default_rng(seed).lognormal(8, 1.5, num_ranks * per_rank).astype(np.int64)
    expert_Y, rank_Y, tokens_Y = fill_ranks(load_X, num_ranks).T
    load_G = load_X.reshape(num_ranks, per_rank).sum(axis=1)
    np.subtract.at(load_G, expert_Y // per_rank, tokens_Y)
    np.add.at(load_G, rank_Y, tokens_Y)
    assert load_G.max() == -(-load_X.sum() // num_ranks)
    for rank in range(num_ranks):
        assert len(set(expert_Y[rank_Y == rank] // per_rank)) <= 1
        assert (rank_Y == rank).sum() <= per_rank
