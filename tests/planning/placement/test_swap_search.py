from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning.placement.objective import Moves, objective
from relibra.planning.placement.partition import spread
from relibra.planning.placement.swap_search import improve, num_proposals
from relibra.planning.traffic import LayerTraffic


def _cost(load_ME, group_E, num_groups):
    return sum(max(row_E[group_E == group].sum() for group in range(num_groups)) for row_E in load_ME)


def _loads(seed, num_rows, num_experts):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.lognormal(5, 1, num_experts), (num_rows, num_experts))


@given(seed=st.integers(0, 10**6), num_groups=st.integers(1, 6), size=st.integers(1, 5), num_rows=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_search_keeps_group_sizes_and_never_worsens(seed, num_groups, size, num_rows):
    load_ME = _loads(seed, num_rows, num_groups * size)
    start_E = spread(load_ME.sum(axis=0), num_groups)
    found_E = improve(load_ME, start_E, num_groups, seed, 2000)
    assert (np.bincount(start_E, minlength=num_groups) == size).all()
    assert (np.bincount(found_E, minlength=num_groups) == size).all()
    assert _cost(load_ME, found_E, num_groups) <= _cost(load_ME, start_E, num_groups)


@pytest.mark.parametrize("seed", range(8))
def test_search_finds_the_best_of_all_splits_in_two(seed):
    load_ME = _loads(seed, 4, 10)
    every = (np.isin(np.arange(10), half).astype(np.int32) for half in combinations(range(10), 5))
    best = min(_cost(load_ME, group_E, 2) for group_E in every)
    found_E = improve(load_ME, spread(load_ME.sum(axis=0), 2), 2, seed, 20_000)
    assert _cost(load_ME, found_E, 2) == best


def _traffic(seed, load_ME, num_nodes, ranks_per_node):
    rng = np.random.default_rng(seed)
    part_NEM = rng.dirichlet(np.ones(num_nodes), load_ME.T.shape).transpose(2, 0, 1)
    local_NEM = (part_NEM * load_ME.T).astype(np.int64)
    price = int(rng.integers(1, 8 << 10))
    layer = LayerTraffic(local_NEM=local_NEM, price=price, by_rank=True)
    return layer.of_ranks(ranks_per_node) if ranks_per_node > 1 else layer.of_nodes()


@given(
    seed=st.integers(0, 10**6),
    num_nodes=st.integers(2, 4),
    ranks_per_node=st.integers(1, 2),
    size=st.integers(1, 4),
    num_rows=st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_search_with_traffic_keeps_group_sizes_and_never_worsens(seed, num_nodes, ranks_per_node, size, num_rows):
    num_groups = num_nodes * ranks_per_node
    load_ME = _loads(seed, num_rows, num_groups * size)
    traffic = _traffic(seed, load_ME, num_nodes, ranks_per_node)
    start_E = spread(load_ME.sum(axis=0), num_groups)
    found_E = improve(load_ME, start_E, num_groups, seed, 2000, traffic=traffic)
    assert (np.bincount(found_E, minlength=num_groups) == size).all()
    assert objective(load_ME, found_E, num_groups, traffic) <= objective(load_ME, start_E, num_groups, traffic)


@pytest.mark.parametrize("seed", range(6))
def test_search_with_traffic_finds_the_best_of_all_splits_in_two(seed):
    load_ME = _loads(seed, 4, 10)
    traffic = _traffic(seed, load_ME, 2, 1)
    every = (np.isin(np.arange(10), half).astype(np.int32) for half in combinations(range(10), 5))
    best = min(objective(load_ME, group_E, 2, traffic) for group_E in every)
    found_E = improve(load_ME, spread(load_ME.sum(axis=0), 2), 2, seed, 20_000, traffic=traffic)
    assert objective(load_ME, found_E, 2, traffic) <= 1.001 * best


@pytest.mark.parametrize("price", [1, 50, 400])
@pytest.mark.parametrize("seed", range(3))
def test_search_moves_the_experts_that_gain_most_for_their_price(seed, price):
    load_ME = _loads(seed, 4, 10)
    traffic = _traffic(seed, load_ME, 2, 1)
    from_E = (np.arange(10) // 5).astype(np.int32)
    moves = Moves(from_E=from_E, price=price)
    every = (np.isin(np.arange(10), half).astype(np.int32) for half in combinations(range(10), 5))
    best = min(objective(load_ME, group_E, 2, traffic, moves) for group_E in every)
    found_E = improve(load_ME, from_E, 2, seed, 20_000, traffic=traffic, moves=moves)
    found = objective(load_ME, found_E, 2, traffic, moves)
    assert found == objective(load_ME, found_E, 2, traffic) + price * (found_E != from_E).sum()
    assert found <= 1.001 * best


def test_no_expert_moves_where_a_move_costs_more_than_the_load():
    load_ME = _loads(3, 4, 12)
    from_E = (np.arange(12) % 3).astype(np.int32)
    dear = Moves(from_E=from_E, price=int(load_ME.sum()))
    np.testing.assert_array_equal(improve(load_ME, from_E, 3, 0, 5000, moves=dear), from_E)
    # A start that is dear to reach goes back, in loads of any size.
    start_E = spread(load_ME.sum(axis=0), 3)
    for factor in (1, 2**33):
        back = Moves(from_E=from_E, price=dear.price * factor)
        found_E = improve(load_ME * factor, start_E, 3, 0, 20_000, moves=back)
        assert objective(load_ME * factor, found_E, 3, None, back) <= objective(
            load_ME * factor, start_E, 3, None, back
        )
        assert (found_E != from_E).sum() < (start_E != from_E).sum()


def test_loads_beyond_32_bits_are_searched_with_traffic_as_well():
    load_ME = _loads(1, 16, 64)
    traffic = _traffic(1, load_ME, 4, 1)
    large = replace(traffic, local_NEM=traffic.local_NEM << 20, out_PM=traffic.out_PM << 20)
    start_E = spread(load_ME.sum(axis=0), 4)
    found_E = improve(load_ME << 20, start_E, 4, 0, 20_000, traffic=large)
    assert objective(load_ME, found_E, 4, traffic) < objective(load_ME, start_E, 4, traffic)


def test_search_beats_the_greedy_split_it_starts_from():
    load_ME = _loads(1, 16, 64)
    start_E = spread(load_ME.sum(axis=0), 4)
    ideal = load_ME.sum() / 4
    before = _cost(load_ME, start_E, 4) / ideal - 1
    after = _cost(load_ME, improve(load_ME, start_E, 4, 0, 100_000), 4) / ideal - 1
    assert after < before / 2


def test_S8_search_gives_the_same_split_for_the_same_seed():
    load_ME = _loads(2, 8, 32)
    start_E = spread(load_ME.sum(axis=0), 4)
    first_E, again_E, other_E = (improve(load_ME, start_E, 4, seed, 5000) for seed in (7, 7, 8))
    np.testing.assert_array_equal(first_E, again_E)
    assert (first_E != other_E).any()


def test_loads_beyond_32_bits_are_searched_as_well():
    load_ME = _loads(1, 16, 64)
    start_E = spread(load_ME.sum(axis=0), 4)
    large_ME = load_ME * 2**33
    found_E = improve(large_ME, start_E, 4, 0, 20_000)
    assert _cost(large_ME, found_E, 4) < _cost(large_ME, start_E, 4)


def test_an_empty_load_keeps_its_split():
    group_E = np.arange(8, dtype=np.int32) // 4
    np.testing.assert_array_equal(improve(np.zeros((2, 8), dtype=np.int64), group_E, 2, 0, 1000), group_E)


def test_a_step_gets_the_same_work_however_it_is_cut():
    assert num_proposals(16, 10, 64) == 2 * num_proposals(16, 20, 64)
    assert num_proposals(1000, 1, 64) < num_proposals(10, 1, 64)
    assert num_proposals(10**6, 60, 256) > 256 * 100
    assert num_proposals(1, 1, 4) <= 16_000
    assert num_proposals(16, 10, 64, has_traffic=True) == num_proposals(48, 10, 64)
    assert 3 * num_proposals(10**6, 60, 256, has_traffic=True) == num_proposals(10**6, 60, 256)
