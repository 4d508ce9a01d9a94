import numpy as np

from relibra.evaluation import eplb_imbalance
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.solve import solve


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
