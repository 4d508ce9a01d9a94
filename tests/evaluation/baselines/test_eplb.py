import numpy as np

from relibra.evaluation.assignment import Known
from relibra.evaluation.baselines import eplb, eplb_per_micro_batch, rebalance_experts
from relibra.planning import Cluster, Model


def test_eplb_gives_the_answer_its_authors_publish():
    weight_LE = np.array(
        [
            [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
            [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
        ]
    )
    logical_LP = rebalance_experts(weight_LE, num_physical=16, num_groups=4, num_nodes=2, num_ranks=8)
    np.testing.assert_array_equal(
        logical_LP,
        [[5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]],
    )


def test_eplb_of_an_even_load_is_even():
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
    model = Model(num_layers=1, num_experts=8, top_k=1)
    np.testing.assert_array_equal(eplb(np.full((1, 1, 8), 10), model, cluster).rank_loads_MLR(cluster), [[[20] * 4]])


def test_history_decides_copies_and_the_load_is_shared_over_them():
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1)
    model = Model(num_layers=1, num_experts=2, top_k=1)
    seen_MLE, load_MLE = np.array([[[90, 10]]]), np.array([[[11, 88]]])
    # Expert 0 was heavy, so its copies on both ranks share 11 tokens; the only copy of expert 1 has all 88 tokens.
    loads_R = eplb(load_MLE, model, cluster, seen_MLE).rank_loads_MLR(cluster)[0, 0]
    assert loads_R.sum() == 99
    assert loads_R.max() >= 88


def test_a_placement_for_every_micro_batch_fits_each_and_comes_late():
    cluster = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1)
    model = Model(num_layers=1, num_experts=8, top_k=1)
    load_MLE = np.stack([np.roll([[400, 10, 10, 10, 10, 10, 10, 10]], shift, axis=1) for shift in range(4)])
    once, again = eplb(load_MLE, model, cluster), eplb_per_micro_batch(load_MLE, model, cluster)
    assert again.rank_loads_MLR(cluster).max(axis=-1).sum() < once.rank_loads_MLR(cluster).max(axis=-1).sum()
    assert (once.known, again.known) == (Known.AHEAD, Known.ROUTED)
    assert again.decision_us > 0
