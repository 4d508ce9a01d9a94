import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning import Cluster
from relibra.planning.bound import lower_bound_ML
from relibra.planning.load import home_loads


def _bound(load_E, home_E, num_nodes, gpus_per_node, slots):
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=slots)
    bound_ML = lower_bound_ML(np.array([[load_E]]), np.array([home_E], dtype=np.int32), cluster)
    assert bound_ML.dtype == np.float64
    return bound_ML[0, 0]


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_no_plan_is_below_its_bound(problems, data):
    problem = data.draw(problems)
    plan = problem.solve()
    assert (plan.lower_bound_ML <= plan.rank_loads_MLR.max(axis=-1)).all()
    np.testing.assert_array_equal(
        plan.lower_bound_ML, lower_bound_ML(problem.load_MLE, plan.home_rank_LE, problem.cluster)
    )


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
