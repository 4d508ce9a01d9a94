from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.exact import exact_limit
from relibra.planning import Cluster
from relibra.planning.bounds.step import step_bound_L
from relibra.planning.load import home_loads


def _placements(num_experts, cluster):
    """Yield all placements, without those that only rename ranks of a node or nodes."""
    homes = sorted(
        set(permutations(np.repeat(np.arange(cluster.num_ranks), num_experts // cluster.num_ranks).tolist()))
    )
    seen = set()
    for home_E in homes:
        ranks = [frozenset(e for e in range(num_experts) if home_E[e] == rank) for rank in range(cluster.num_ranks)]
        by_node = np.reshape(np.array(ranks, dtype=object), (cluster.num_nodes, cluster.gpus_per_node))
        name = frozenset(frozenset(node) for node in by_node.tolist())
        if name not in seen:
            seen.add(name)
            yield np.array(home_E)


def _best_of_all_placements(load_ME, cluster):
    """Return the tokens of the slowest ranks of one layer in the best plan of the best placement."""
    num_gpus = cluster.gpus_per_node
    best = load_ME.sum()
    for home_E in _placements(load_ME.shape[1], cluster):
        tokens = 0
        for load_E in load_ME:
            nodes = [home_E // num_gpus == node for node in range(cluster.num_nodes)]
            limits = [exact_limit(load_E[on], home_E[on] % num_gpus, num_gpus, cluster.redundant_slots) for on in nodes]
            assert all(limit.is_proven for limit in limits)
            tokens += max(limit.at_most for limit in limits)
        best = min(best, tokens)
    return best


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_nodes", "gpus_per_node", "per_rank"),
    [(2, 1, 2), (2, 1, 3), (3, 1, 2), (2, 2, 1), (1, 2, 3), (1, 3, 2), (5, 1, 1)],
)
@pytest.mark.parametrize("slots", [0, 1])
def test_no_placement_is_below_the_floor(num_nodes, gpus_per_node, per_rank, slots):
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=slots)
    num_experts = cluster.num_ranks * per_rank
    tight = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        load_ME = rng.poisson(rng.lognormal(0, [0.3, 2.0][seed % 2], num_experts) * 20, (2, num_experts))
        bound = step_bound_L(load_ME[:, None], cluster)[0]
        best = _best_of_all_placements(load_ME, cluster)
        assert bound <= best
        tight += bound >= 0.98 * best
    assert tight >= 1


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_plan_is_below_the_floor(problems, data):
    problem = data.draw(problems)
    plan = problem.solve()
    bound_L = step_bound_L(problem.load_MLE, problem.cluster)
    assert (bound_L <= plan.rank_loads_MLR.max(axis=-1).sum(axis=0)).all()
    assert plan.prediction.imbalance_floor <= plan.prediction.imbalance_after + 1e-12
    assert f"no placement gets below {plan.prediction.imbalance_floor:.3f}" in plan.reason


@pytest.mark.parametrize(
    ("load_E", "num_nodes", "gpus_per_node", "slots", "expected"),
    [
        ([3, 3, 3, 2], 2, 2, 1, 3),  # the mean, rounded up
        ([90, 1, 1, 1], 2, 2, 1, 46),  # the largest expert and its smallest neighbours share one node
        ([50, 50, 50, 1, 1, 1], 2, 1, 1, 101),  # two of three large experts share a node
        ([40, 9, 9, 9], 1, 4, 0, 40),  # without slots no expert is shared
        ([10] * 8, 1, 2, 1, 40),
        ([60, 10, 10, 10, 10, 10, 10, 10], 1, 2, 1, 65),
    ],
)
def test_every_argument_decides_some_case(load_E, num_nodes, gpus_per_node, slots, expected):
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=slots)
    assert step_bound_L(np.array([[load_E]]), cluster)[0] == expected


def test_rows_that_share_a_placement_are_bounded_together():
    """Every row alone splits evenly over two nodes, but two of the three large experts must share a node."""
    cluster = Cluster(num_nodes=2, gpus_per_node=1, redundant_slots=1)
    load_ME = np.array([[20, 20, 0, 0, 0, 0], [0, 20, 20, 0, 0, 0], [20, 0, 20, 0, 0, 0]])
    assert sum(step_bound_L(row_E[None, None], cluster)[0] for row_E in load_ME) == 60
    assert step_bound_L(load_ME[:, None], cluster)[0] == _best_of_all_placements(load_ME, cluster) == 80


def test_S8_the_bound_is_equal_for_relabelled_experts_and_exact_for_large_loads():
    rng = np.random.default_rng(0)
    cluster = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=2)
    load_MLE = rng.integers(0, 2**40, (3, 2, 128))
    shuffled_MLE = load_MLE[..., rng.permutation(128)]
    np.testing.assert_array_equal(step_bound_L(load_MLE, cluster), step_bound_L(shuffled_MLE, cluster))
    identity_LE = np.tile(np.arange(128, dtype=np.int32) // 2, (2, 1))
    assert (step_bound_L(load_MLE, cluster) <= home_loads(load_MLE, identity_LE, 64).max(axis=-1).sum(axis=0)).all()
