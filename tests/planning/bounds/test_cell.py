import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.exact import exact_limit
from harness.replicated import replicated
from relibra.planning import Cluster
from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.expected.replicas import foresee_layer
from relibra.planning.load import home_loads, rank_loads
from relibra.planning.replicas.replicate import replicate_layer


def _bound(load_E, home_E, num_nodes, gpus_per_node, slots, min_tokens=1):
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=slots)
    bound_ML = lower_bound_ML(np.array([[load_E]]), np.array([home_E], dtype=np.int32), cluster, min_tokens)
    assert bound_ML.dtype == np.float64
    return bound_ML[0, 0]


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_no_plan_is_below_its_bound(problems, data):
    """The bound holds for the plan that carries it and for other choices of replicas under the same placement."""
    problem = data.draw(problems)
    plan, load_MLE = problem.solve(), problem.load_MLE
    node_LE = plan.home_rank_LE // plan.cluster.gpus_per_node
    node_loads_MLN = home_loads(load_MLE, node_LE, plan.cluster.num_nodes)
    assert (plan.lower_bound_ML >= node_loads_MLN.max(axis=-1) / plan.cluster.gpus_per_node).all()
    assert (plan.lower_bound_ML <= plan.rank_loads_MLR.max(axis=-1)).all()
    for choose in (replicate_layer, foresee_layer):
        other = replicated(load_MLE, plan.home_rank_LE, plan.cluster, choose=choose)
        loads_MLR = rank_loads(other.index_Q4, other.tokens_Q, *load_MLE.shape[:2], plan.cluster.num_ranks)
        assert (plan.lower_bound_ML <= loads_MLR.max(axis=-1)).all()


def test_the_heaviest_node_bounds_whatever_its_slots():
    assert _bound([70, 31, 1, 1], [0, 1, 2, 3], 2, 2, 4) == 51


def test_without_slots_the_heaviest_rank_is_the_bound(random_problem):
    problem = random_problem.random(0, redundant_slots=0)
    home_LE = problem.cluster.identity_placement(problem.model)
    np.testing.assert_array_equal(
        lower_bound_ML(problem.load_MLE, home_LE, problem.cluster),
        home_loads(problem.load_MLE, home_LE, problem.cluster.num_ranks).max(axis=-1),
    )


@pytest.mark.parametrize(("slots", "expected"), [(0, 80), (1, 70), (2, 60), (3, 50), (4, 40), (5, 40)])
def test_a_rank_of_small_experts_cannot_hand_over_more_than_its_neighbour_has_slots(slots, expected):
    assert _bound([10] * 8 + [0] * 8, [0] * 8 + [1] * 8, 1, 2, slots) == expected


def test_two_heavy_ranks_share_the_slots_of_the_others():
    assert _bound([10] * 8 + [0] * 4, [0] * 4 + [1] * 4 + [2] * 4, 1, 3, 1) == 35


def _random_node(seed):
    """Return a random node; in half of them the heavy experts share ranks."""
    rng = np.random.default_rng(seed)
    num_ranks = int(rng.integers(2, 9))
    per_rank = int(rng.integers(1, 16 // num_ranks + 1))
    load_X = rng.poisson(
        rng.lognormal(0, rng.choice([0.3, 0.6, 1.2, 2.0]), num_ranks * per_rank) * rng.choice([9, 3000])
    )
    if rng.integers(2):
        load_X.sort()
    return load_X, np.repeat(np.arange(num_ranks), per_rank), num_ranks, int(rng.integers(0, 4))


@pytest.mark.parametrize("min_tokens", [pytest.param(1, marks=pytest.mark.long), 4])
def test_the_bound_is_never_above_the_optimum_and_mostly_equal_to_it(min_tokens):
    gaps = []
    for seed in range(120):
        load_X, home_X, num_ranks, slots = _random_node(seed)
        best = exact_limit(load_X, home_X, num_ranks, slots, min_tokens)
        assert best.is_proven
        bound = _bound(load_X, home_X, 1, num_ranks, slots, min_tokens)
        assert bound <= best.at_most
        gaps.append(1 - bound / max(best.at_most, 1))
    assert np.mean(gaps) <= 0.005
    assert np.mean(np.array(gaps) > 0) <= 0.05


def test_a_replica_has_no_more_tokens_than_its_rank():
    """Two slots take the two largest experts, but not all of the largest: its replica would make the slowest rank."""
    load_X = [0, 14, 16, 17, 25, 40, 65, 197, 236, 2201, 2930, 5958]
    assert _bound(load_X, np.repeat(np.arange(3), 4), 1, 3, 1) == 4198
    assert exact_limit(np.array(load_X), np.repeat(np.arange(3), 4), 3, 1).at_most == 4221


@pytest.mark.parametrize(("min_tokens", "expected"), [(1, 26), (32, 41), (33, 42), (40, 42)])
def test_replicas_of_a_least_size_need_room_for_it(min_tokens, expected):
    assert _bound([42, 9], [0, 1], 1, 2, 1, min_tokens) == expected


@pytest.mark.parametrize("slots", [0, 1, 8])
def test_loads_near_the_largest_int32_and_one_rank(slots):
    largest = 2**31 - 1
    assert _bound([largest] * 8, [0] * 4 + [1] * 4, 1, 2, slots) == 4 * largest
    assert _bound([largest, 5], [0, 0], 1, 1, slots) == largest + 5
