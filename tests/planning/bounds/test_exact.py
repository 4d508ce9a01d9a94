from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np
import pytest

from harness.exact import ExactLimit, exact_gap, exact_limit
from relibra.errors import Unsupported
from relibra.planning import Cluster, PlanParams, check_plan, imbalance
from relibra.planning.bounds.cell import lower_bound_ML
from relibra.planning.cost import CostModel
from relibra.planning.replicas.replicate import replicate_layer


def _subsets(items, most):
    return chain.from_iterable(combinations(items, size) for size in range(most + 1))


def _reaches(load_X, copies_X, home_X, num_ranks, min_tokens, limit):
    """Return whether tokens can be spread over copies so that no rank has more than `limit`, by trying every way."""
    states = {(0,) * num_ranks}
    for load, copies, home in zip(load_X, copies_X, home_X, strict=True):
        choices = []
        for tokens in product(*(range(min_tokens, load + 1) for _ in copies)):
            if sum(tokens) <= load:
                added = [0] * num_ranks
                added[home] = load - sum(tokens)
                for rank, number in zip(copies, tokens, strict=True):
                    added[rank] += number
                choices.append(added)
        states = {
            summed
            for state in states
            for added in choices
            if max(summed := tuple(a + b for a, b in zip(state, added, strict=True))) <= limit
        }
    return bool(states)


def _optimum(load_X, home_X, num_ranks, slots, min_tokens):
    """Return the slowest rank of the best plan, by trying every set of replicas and every way to spread tokens."""
    foreign = [[expert for expert in range(len(load_X)) if home_X[expert] != rank] for rank in range(num_ranks)]
    every = list(product(*(list(_subsets(experts, slots)) for experts in foreign)))
    limit = -(-sum(load_X) // num_ranks)
    while True:
        for held in every:
            copies_X = [[rank for rank in range(num_ranks) if expert in held[rank]] for expert in range(len(load_X))]
            if _reaches(load_X, copies_X, home_X, num_ranks, min_tokens, limit):
                return limit
        limit += 1


@pytest.mark.parametrize(
    ("num_ranks", "per_rank", "slots", "min_tokens"),
    [(2, 2, 1, 1), (2, 2, 1, 3), (2, 2, 2, 2), (3, 1, 1, 1), (3, 1, 1, 3), (3, 1, 2, 2)],
)
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_the_best_of_all_plans(num_ranks, per_rank, slots, min_tokens, seed):
    load_X = np.random.default_rng(seed).integers(0, 12, num_ranks * per_rank)
    home_X = np.repeat(np.arange(num_ranks), per_rank)
    limit = exact_limit(load_X, home_X, num_ranks, slots, min_tokens)
    best = _optimum(load_X.tolist(), home_X.tolist(), num_ranks, slots, min_tokens)
    assert limit == ExactLimit(at_least=best, at_most=best)
    assert limit.is_proven


@pytest.mark.parametrize(
    ("load_X", "slots", "expected"),
    [
        ([0, 0, 0, 0], 1, 0),
        ([9, 1, 1, 1], 0, 9),
        ([9, 1, 1, 1], 1, 3),
        ([5, 5, 5, 5], 2, 5),
        ([2**31, 0, 0, 0], 1, 2**29),
    ],
)
def test_simple_cells(load_X, slots, expected):
    limit = exact_limit(np.array(load_X), np.arange(4), 4, slots)
    assert limit.at_most == expected
    assert limit.is_proven


def test_experts_too_small_for_a_replica_stay_home():
    assert exact_limit(np.array([5, 5, 0, 0]), np.array([0, 0, 1, 1]), 2, 2, min_tokens=6).at_most == 10


def test_a_search_without_time_tells_what_it_knows():
    rng = np.random.default_rng(0)
    limit = exact_limit(rng.poisson(rng.lognormal(6, 1, 64)), np.repeat(np.arange(8), 8), 8, 2, time_limit_s=0.0)
    assert 0 < limit.at_least <= limit.at_most


def _gap(seed):
    """Return the gap of a random small cell to its optimum; in half of them the heavy experts share ranks."""
    rng = np.random.default_rng(seed)
    num_ranks, slots = int(rng.integers(2, 9)), int(rng.integers(0, 4))
    num_experts = num_ranks * int(rng.integers(1, 16 // num_ranks + 1))
    skew, scale = rng.choice([0.3, 0.6, 1.2, 2.0]), rng.choice([20, 300, 4000])
    load_E = rng.poisson(rng.lognormal(0, skew, num_experts) * scale)
    if rng.integers(2):
        load_E.sort()
    home_E = np.repeat(np.arange(num_ranks, dtype=np.int32), num_experts // num_ranks)
    cluster = Cluster(num_nodes=1, gpus_per_node=num_ranks, redundant_slots=slots)
    found = replicate_layer(load_E[None], home_E, cluster).limit_M[0]
    if found == lower_bound_ML(load_E[None, None], home_E[None], cluster)[0, 0]:
        return 0.0  # proven without a search
    best = exact_limit(load_E, home_E, num_ranks, slots)
    assert best.is_proven
    return found / best.at_most - 1


def test_replicas_are_within_half_a_percent_of_the_optimum():
    gaps = [_gap(seed) for seed in range(500)]
    assert np.mean(gaps) <= 0.005
    assert np.max(gaps) <= 0.03


def test_the_gap_of_a_plan_comes_from_its_cells(random_problem):
    problem = random_problem.random(0, num_nodes=2, gpus_per_node=3, num_layers=3)
    plan = problem.solve()
    gap = exact_gap(plan, problem.load)
    assert gap.num_cells == gap.num_proven == plan.lower_bound_ML.size
    assert 0 <= gap.mean <= gap.worst <= 0.03


def test_a_plan_without_replicas_is_not_optimal(random_problem):
    problem = random_problem.random(0, num_nodes=1, gpus_per_node=3, num_layers=1)
    bare = replace(problem, cluster=replace(problem.cluster, redundant_slots=0)).solve()
    plan = replace(
        bare, cluster=problem.cluster, lower_bound_ML=np.zeros_like(bare.lower_bound_ML), home_rank_LE=bare.home_rank_LE
    )
    check_plan(plan, problem.load_MLE)
    gap = exact_gap(plan, problem.load)
    assert gap.num_proven == gap.num_cells
    assert gap.worst >= gap.mean > 0.01
    assert imbalance(plan.rank_loads_MLR) > 1.01


def test_the_optimum_of_a_plan_is_under_its_own_least_size_of_replicas(random_problem):
    problem = random_problem.random(2, num_nodes=1, gpus_per_node=4, scale=30)
    sized = replace(
        problem,
        model=replace(problem.model, expert_weight_size_bytes=1 << 20),
        params=PlanParams(cost=CostModel.of_expert(1 << 20)),
    )
    for each in (sized, replace(problem, params=PlanParams(min_tokens_per_replica=60))):
        gap = exact_gap(each.solve(), each.load)
        assert gap.worst >= gap.mean >= 0
        assert gap.num_proven == gap.num_cells


def test_an_empty_step_has_no_gap(random_problem):
    problem = random_problem.random(0, scale=0)
    gap = exact_gap(problem.solve(), problem.load)
    assert gap.mean == gap.worst == 0.0
    assert gap.num_proven == gap.num_cells


def test_too_many_ranks_are_refused():
    with pytest.raises(Unsupported, match="at most 16 ranks, not 17"):
        exact_limit(np.arange(17), np.arange(17), 17, 1)
