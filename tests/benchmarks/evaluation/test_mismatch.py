import numpy as np
import pytest

from benchmarks.evaluation.mismatch import rerouted
from relibra.evaluation.assignment import Assignment
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.load import imbalance
from relibra.planning.solve import solve

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=2)
_MODEL = Model(num_layers=3, num_experts=16, top_k=2)


@pytest.fixture(scope="module")
def load():
    rng = np.random.default_rng(0)
    counts_SLE = rng.poisson(rng.lognormal(4, 1, (64, 3, 16)))
    return StepLoad.of(counts_SLE, Schedule.round_robin(64, 4, _CLUSTER), _CLUSTER)


@pytest.fixture(scope="module")
def plan(load):
    return solve(load, Schedule.round_robin(64, 4, _CLUSTER), _MODEL, _CLUSTER)


@pytest.mark.parametrize("evenly", [False, True])
def test_rerouting_keeps_copies_and_changes_the_share_asked_for(load, evenly):
    actual = rerouted(load, 0.1, seed=2, evenly=evenly)
    np.testing.assert_array_equal(actual.counts_SLE.sum(axis=-1), load.counts_SLE.sum(axis=-1))
    changed = np.abs(actual.counts_SLE - load.counts_SLE).sum() / 2 / load.counts_SLE.sum()
    assert 0.02 < changed < 0.1  # the net change: arriving copies make up for some of the leaving ones
    np.testing.assert_array_equal(rerouted(load, 0.0, seed=2).counts_SLE, load.counts_SLE)


def test_balance_fades_slowly(load, plan):
    def done(share):
        return imbalance(Assignment.of_plan(plan, rerouted(load, share, seed=3)).rank_loads_MLR(_CLUSTER))

    assert done(0) <= done(0.05) < done(0.2) < plan.prediction.imbalance_before
