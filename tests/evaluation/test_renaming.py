import numpy as np

from relibra.evaluation.assignment import at_home
from relibra.evaluation.baselines.eplb import eplb
from relibra.evaluation.renaming import rename
from relibra.planning import Cluster, Model

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
_LOAD_MLE = np.random.default_rng(0).poisson(np.random.default_rng(0).lognormal(4, 1, (1, 3, 8)), (5, 3, 8))


def test_a_placement_that_differs_by_names_alone_moves_nothing():
    previous_LE = np.array([[0, 0, 1, 1, 2, 2, 3, 3]], dtype=np.int32)
    swapped_LE = np.array([3, 2, 0, 1], dtype=np.int32)[previous_LE]
    same = rename(at_home(_LOAD_MLE[:, :1], swapped_LE), previous_LE, _CLUSTER)
    np.testing.assert_array_equal(same.home_LE, previous_LE)


def test_ranks_keep_their_loads_and_nodes_their_ranks():
    model = Model(num_layers=3, num_experts=8, top_k=1)
    before, after = eplb(_LOAD_MLE[:2], model, _CLUSTER), eplb(_LOAD_MLE[2:], model, _CLUSTER)
    named = rename(after, before.home_LE, _CLUSTER)
    for assignment in (named, after):
        assert assignment.tokens_Q.sum() == _LOAD_MLE[2:].sum()
    by_node = (each.rank_loads_MLR(_CLUSTER).reshape(3, 3, 2, 2) for each in (named, after))
    named_MLNG, after_MLNG = (np.sort(np.sort(each, axis=-1), axis=-2) for each in by_node)
    np.testing.assert_array_equal(named_MLNG.sum(axis=-1), after_MLNG.sum(axis=-1))
    assert (named.home_LE != before.home_LE).sum() <= (after.home_LE != before.home_LE).sum()
    np.testing.assert_array_equal(
        named.home_LE[named.index_Q4[:, 1], named.index_Q4[:, 2]] // 2, named.index_Q4[:, 3] // 2
    )
