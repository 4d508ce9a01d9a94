import numpy as np
import pytest

from benchmarks.evaluation.mismatch import executed, rerouted
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


def test_planned_routing_is_executed_exactly_as_planned(load, plan):
    planned, done = Assignment.of_plan(plan), executed(plan, load)
    np.testing.assert_array_equal(done.index_Q4, planned.index_Q4)
    np.testing.assert_array_equal(done.tokens_Q, planned.tokens_Q)
    np.testing.assert_array_equal(done.crossing_Q, planned.crossing_Q)
    assert done.crossing_Q.sum() > 0
    assert done.maps_on_host


def test_S5_any_routing_is_computed_once_and_unplanned_tokens_go_home(load, plan):
    actual = rerouted(load, 0.5, seed=1)
    done = executed(plan, actual)
    computed_MLE = np.zeros_like(actual.load_MLE)
    np.add.at(computed_MLE, tuple(done.index_Q4[:, :3].T), done.tokens_Q)
    np.testing.assert_array_equal(computed_MLE, actual.load_MLE)
    planned = {tuple(index): tokens for index, tokens in zip(plan.quota_index_Q4, plan.quota_tokens_Q, strict=True)}
    for index, tokens in zip(done.index_Q4[done.is_replica_Q], done.tokens_Q[done.is_replica_Q], strict=True):
        assert tokens <= planned[tuple(index)]


@pytest.mark.parametrize("evenly", [False, True])
def test_rerouting_keeps_copies_and_changes_the_share_asked_for(load, evenly):
    actual = rerouted(load, 0.1, seed=2, evenly=evenly)
    np.testing.assert_array_equal(actual.counts_SLE.sum(axis=-1), load.counts_SLE.sum(axis=-1))
    changed = np.abs(actual.counts_SLE - load.counts_SLE).sum() / 2 / load.counts_SLE.sum()
    assert 0.02 < changed < 0.1  # the net change: arriving copies make up for some of the leaving ones
    np.testing.assert_array_equal(rerouted(load, 0.0, seed=2).counts_SLE, load.counts_SLE)


def test_balance_fades_slowly(load, plan):
    def done(share):
        return imbalance(executed(plan, rerouted(load, share, seed=3)).rank_loads_MLR(_CLUSTER))

    assert done(0) < done(0.05) < done(0.2) < plan.prediction.imbalance_before
