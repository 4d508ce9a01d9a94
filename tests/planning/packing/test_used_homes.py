"""Placements by use alone: valid whatever the use is, and by the majority where there is one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relibra.planning import Cluster, Model, check_placement
from relibra.planning.packing.used_homes import used_homes


@given(
    num_nodes=st.integers(1, 4),
    gpus_per_node=st.integers(1, 3),
    of_rank=st.integers(1, 3),
    highest=st.sampled_from([1, 3, 1000]),
    seed=st.integers(0, 99),
)
def test_every_use_gives_a_placement_and_equal_use_the_same(
    num_nodes: int, gpus_per_node: int, of_rank: int, highest: int, seed: int
) -> None:
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=1)
    model = Model(num_layers=3, num_experts=cluster.num_ranks * of_rank, top_k=1)
    used_NLE = np.random.default_rng(seed).integers(highest, size=(num_nodes, 3, model.num_experts))
    home_LE = used_homes(used_NLE, cluster)
    check_placement(home_LE, model, cluster)
    np.testing.assert_array_equal(home_LE, used_homes(used_NLE.copy(), cluster))


def test_a_small_majority_decides_in_all_layers() -> None:
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    used_NLE = np.full((2, 3, 8), 100)
    used_NLE[0, :, 1::2] += 1
    home_LE = used_homes(used_NLE, cluster)
    assert (home_LE[:, 1::2] < 2).all()
    assert (home_LE[:, ::2] >= 2).all()


def test_a_node_that_is_full_leaves_experts_to_others() -> None:
    used_NLE = np.array([[[9, 8, 7, 6]], [[0, 0, 0, 0]]])
    assert used_homes(used_NLE, Cluster(num_nodes=2, gpus_per_node=1, redundant_slots=1)).tolist() == [[0, 0, 1, 1]]
