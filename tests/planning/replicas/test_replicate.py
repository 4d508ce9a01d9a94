from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.replicated import quotas_of, replicated
from relibra.planning import Cluster
from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.load import home_loads, rank_loads
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.replicate import replicate, replicate_layer


def _subsets(items, most):
    return chain.from_iterable(combinations(items, size) for size in range(most + 1))


def optimum(load_E, home_E, num_ranks, slots):
    """Return the slowest rank of the best plan of one node, by trying every set of replicas.

    With the copies fixed, tokens flow freely among them, so the slowest rank is the largest mean over sets of ranks of
    the load that cannot leave the set (Hall's condition), rounded up.
    """
    ranks = range(num_ranks)
    foreign = [[expert for expert in range(len(load_E)) if home_E[expert] != rank] for rank in ranks]
    rank_sets = [sum(1 << rank for rank in some) for some in _subsets(ranks, num_ranks) if some]
    best = int(load_E.sum())
    for held in product(*(list(_subsets(foreign[rank], slots)) for rank in ranks)):
        copies_E = [1 << int(home) for home in home_E]
        for rank, experts in enumerate(held):
            for expert in experts:
                copies_E[expert] |= 1 << rank
        worst = 0
        for rank_set in rank_sets:
            stuck = sum(int(load) for load, copies in zip(load_E, copies_E, strict=True) if not copies & ~rank_set)
            worst = max(worst, -(-stuck // rank_set.bit_count()))
        best = min(best, worst)
    return best


def _cells(num_cells, num_experts, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.lognormal(5, 1.2, (num_cells, 1, num_experts))).astype(np.int64)


@pytest.mark.parametrize(
    ("num_ranks", "per_rank", "slots"), [(2, 2, 1), (2, 3, 2), (3, 1, 1), (3, 2, 1), (3, 1, 2), (4, 1, 1)]
)
def test_replicas_come_close_to_the_best_there_are(num_ranks, per_rank, slots):
    load_MLE = _cells(60, num_ranks * per_rank)
    home_LE = np.repeat(np.arange(num_ranks, dtype=np.int32), per_rank)[None]
    cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks, redundant_slots=slots)
    found_M = replicate_layer(load_MLE[:, 0], home_LE[0], cluster).limit_M
    bound_M = lower_bound_ML(load_MLE, home_LE, cluster)[:, 0]
    best_M = np.array([optimum(load_E[0], home_LE[0], num_ranks, slots) for load_E in load_MLE])
    assert (bound_M <= best_M).all()
    assert (best_M <= found_M).all()
    assert (found_M / best_M).mean() <= 1.005


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_replicas_never_slow_a_cell_down(problems, data):
    problem = data.draw(problems)
    cluster, load_MLE = problem.cluster, problem.load_MLE
    home_LE = cluster.identity_placement(problem.model)
    quotas = replicated(load_MLE, home_LE, cluster, problem.price)
    loads_MLR = rank_loads(quotas.index_Q4, quotas.tokens_Q, *load_MLE.shape[:2], cluster.num_ranks)
    limits = [
        replicate_layer(load_MLE[:, layer], home_E, cluster, problem.price).limit_M
        for layer, home_E in enumerate(home_LE)
    ]
    slowest_ML = np.stack(limits, axis=1)
    assert (loads_MLR.max(axis=-1) <= slowest_ML).all()
    assert (slowest_ML <= home_loads(load_MLE, home_LE, cluster.num_ranks).max(axis=-1)).all()


def test_a_hot_expert_is_shared_by_its_whole_node_and_no_other():
    cluster = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=1)
    load_MLE = np.array([[[800, 0, 0, 0, 10, 10, 10, 10]]])
    home_LE = np.arange(8, dtype=np.int32)[None]
    index_Y4, reason = replicate(load_MLE, home_LE, cluster)
    quotas = quotas_of(load_MLE, home_LE, cluster, index_Y4)
    np.testing.assert_array_equal(quotas.index_Q4[:4], [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3]])
    np.testing.assert_array_equal(quotas.tokens_Q, [200, 200, 200, 200, 10, 10, 10, 10])
    assert reason == "3.0 replicas per cell"


def test_a_light_node_gets_no_replicas_it_does_not_need():
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    load_MLE = np.array([[[100, 100, 90, 10]]])
    quotas = replicated(load_MLE, np.arange(4, dtype=np.int32)[None], cluster)
    assert len(quotas.tokens_Q) == 4


def test_small_replicas_are_not_made():
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
    load_MLE = np.array([[[70, 50]]])
    home_LE = np.arange(2, dtype=np.int32)[None]
    few = replicated(load_MLE, home_LE, cluster, ReplicaPrice(least=20))
    some = replicated(load_MLE, home_LE, cluster, ReplicaPrice(least=11))
    np.testing.assert_array_equal(few.tokens_Q, [70, 50])
    np.testing.assert_array_equal(some.tokens_Q, [60, 10, 50])


def test_replicas_must_save_what_their_cell_costs():
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
    load_MLE = np.array([[[70, 50]], [[110, 10]]])  # replicas save 10 tokens of the first cell, 50 of the second
    home_LE = np.arange(2, dtype=np.int32)[None]
    for of_cell, num_replicas in ((9, 2), (10, 1), (49, 1), (50, 0)):
        price = ReplicaPrice(of_cell=of_cell)
        quotas = replicated(load_MLE, home_LE, cluster, price)
        assert len(quotas.tokens_Q) == 4 + num_replicas
        assert quotas.tokens_Q.sum() == 240
        layer = replicate_layer(load_MLE[:, 0], home_LE[0], cluster, price)
        assert layer.limit_M.tolist() == [60 if num_replicas == 2 else 70, 60 if num_replicas else 110]
        assert (layer.cost_M - layer.limit_M).tolist() == [of_cell * (num_replicas == 2), of_cell * (num_replicas > 0)]


def test_a_donor_may_be_filled_in_turn():
    """Five ranks are heavy and every rank has one slot: only chains through heavy ranks reach the mean."""
    cluster = Cluster(num_nodes=1, gpus_per_node=6, redundant_slots=1)
    load_ME = np.array([[120, 120, 120, 120, 120, 0]])
    assert replicate_layer(load_ME, np.arange(6, dtype=np.int32), cluster).limit_M[0] == 100
