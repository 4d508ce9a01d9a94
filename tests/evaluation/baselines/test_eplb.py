import numpy as np

from relibra.evaluation.baselines.eplb import eplb, eplb_imbalance, rebalance_experts
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.solve import solve


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


def test_a_plan_beats_the_baselines_on_a_skewed_load():
    cluster = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=2)
    model = Model(num_layers=2, num_experts=16, top_k=2)
    rng = np.random.default_rng(0)
    counts_SLE = rng.poisson(rng.lognormal(3, 1, (64, 2, 16)))
    schedule = Schedule.round_robin(64, 8, cluster)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    plan = solve(load, schedule, model, cluster)
    prediction = plan.prediction
    assert 1 <= prediction.imbalance_bound <= prediction.imbalance_after
    assert prediction.imbalance_after < eplb_imbalance(load.load_MLE, plan) < prediction.imbalance_before
