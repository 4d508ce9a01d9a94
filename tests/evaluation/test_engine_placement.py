"""Placements for rollout engines: valid, and better balanced than those of engines that know no loads."""

import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.engine_placement import imbalance_of, place_copies, trivial
from relibra.planning import Cluster

RANKS = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=0)


def loads(seed: int) -> np.ndarray:
    """Return the loads of six micro-batches whose experts are about as popular, but not equally."""
    rng = np.random.default_rng(seed)
    popularity_LE = rng.lognormal(0, 1.0, (3, 16))
    return rng.poisson(popularity_LE * rng.lognormal(4, 0.3, (6, 3, 16)))


@pytest.mark.parametrize("num_redundant", [0, 4, 12])
def test_every_expert_has_a_copy_and_ranks_are_better_balanced_also_in_micro_batches_not_seen(num_redundant):
    load_MLE = loads(0)
    expert_LP = place_copies(load_MLE[::2], 16 + num_redundant, RANKS)
    assert expert_LP.shape == (3, 16 + num_redundant)
    assert all(set(expert_P) == set(range(16)) for expert_P in expert_LP)
    of_ranks = expert_LP.reshape(12, -1)
    assert all(len(set(each)) == len(each) for each in of_ranks), "copies of an expert are on different ranks"
    plain = imbalance_of(load_MLE[1::2], trivial(3, 16, 16 + num_redundant), 4)
    assert imbalance_of(load_MLE[1::2], expert_LP, 4) < 1 + 0.5 * (plain - 1)
    np.testing.assert_array_equal(place_copies(load_MLE[::2], 16 + num_redundant, RANKS), expert_LP)


def test_copies_go_where_they_lower_the_largest_load_of_a_copy():
    load_MLE = np.array([[[600, 200, 100, 100]]])
    (expert_P,) = place_copies(load_MLE, 8, RANKS)
    np.testing.assert_array_equal(np.bincount(expert_P), [4, 2, 1, 1])


@pytest.mark.parametrize("num_copies", [15, 18])
def test_copies_that_ranks_cannot_share_are_refused(num_copies):
    with pytest.raises(InvalidInput, match="a multiple of 4 ranks"):
        place_copies(loads(0), num_copies, RANKS)
