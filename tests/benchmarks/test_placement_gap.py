from itertools import permutations

import numpy as np
import pytest

from benchmarks.placement_gap import best_sum


def tried(load_ME: np.ndarray, num_nodes: int) -> int:
    """Return the least sum over all orders of the experts, cut into equal nodes."""
    return min(
        load_ME[:, list(order)].reshape(len(load_ME), num_nodes, -1).sum(axis=2).max(axis=1).sum()
        for order in permutations(range(load_ME.shape[1]))
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_nodes", [2, 3])
def test_the_best_split_is_that_of_all_splits(seed, num_nodes):
    load_ME = np.random.default_rng(seed).lognormal(5, 1, (3, 6)).astype(np.int64)
    at_most = int(load_ME.sum())
    assert best_sum(load_ME, num_nodes, at_most, 10**6) == (tried(load_ME, num_nodes), True)


def test_a_search_that_gives_up_proves_nothing():
    load_ME = np.random.default_rng(0).lognormal(5, 1, (3, 6)).astype(np.int64)
    assert best_sum(load_ME, 2, 10**9, 3) == (10**9, False)
