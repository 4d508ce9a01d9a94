import numpy as np

from relibra.evaluation.baselines import identity, longest_first, whole_experts
from relibra.planning import Cluster, Model

_CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
_MODEL = Model(num_layers=1, num_experts=4, top_k=1)
_LOAD_MLE = np.array([[[9, 7, 1, 1]]])


def _loads(function):
    return function(_LOAD_MLE, _MODEL, _CLUSTER).rank_loads_MLR(_CLUSTER)[0, 0].tolist()


def test_plain_expert_parallelism_keeps_experts_in_order():
    assert _loads(identity) == [16, 2]


def test_longest_first_pairs_heavy_with_light():
    assert sorted(_loads(longest_first)) == [8, 10]


def test_whole_experts_move_to_the_lighter_rank():
    assert sorted(_loads(whole_experts)) == [8, 10]
