from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad
from relibra.planning.solve import solve

_COST = CostModel(token_size_bytes=4096.0, inter_node_bytes_per_us=1024.0, hidden_transfer_share=1.0)
_CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)


def _step(seed, num_rows, num_experts, num_layers=1):
    rng = np.random.default_rng(seed)
    popularity_RE = rng.lognormal(0, 1.0, (num_layers, 4, num_experts))
    return StepLoad.of_sources(rng.poisson(200 * popularity_RE, (num_rows, num_layers, 4, num_experts)))


@given(
    seed=st.integers(0, 10**6),
    per_rank=st.integers(1, 4),
    slots=st.integers(0, 2),
    price=st.floats(1, 1e5),
    once=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_no_plan_is_faster_than_its_bounds(seed, per_rank, slots, price, once):
    load = _step(seed, num_rows=3, num_experts=4 * per_rank, num_layers=2)
    model = Model(num_layers=2, num_experts=4 * per_rank, top_k=1)
    params = PlanParams(cost=replace(_COST, token_size_bytes=price, sends_once_per_node=once))
    schedule = Schedule.round_robin(12, 3, _CLUSTER)
    found = solve(load, schedule, model, replace(_CLUSTER, redundant_slots=slots), params).prediction
    assert found.time_bound_us <= found.time_us * (1 + 1e-12)
    assert found.time_floor_us <= found.time_us * (1 + 1e-12)


def _time_without_replicas(load, home_E):
    """Return the slowest rank's tokens and the busiest adapter's copies of every row, at 3 tokens a copy."""
    node_E, total = home_E // 2, 0.0
    for row in range(load.num_rows):
        source_RE = load.source_load_RLE(row)[:, 0]
        crossing_RE = source_RE * (np.arange(4)[:, None] // 2 != node_E)
        tokens = max(source_RE[:, home_E == rank].sum() for rank in range(4))
        enters = max(crossing_RE[:, home_E == rank].sum() for rank in range(4))
        leaves = max(crossing_RE[2 * node : 2 * node + 2].sum() / 2 for node in range(2))
        total += tokens + 3 * max(enters, leaves)
    return total


@pytest.mark.parametrize("seed", range(4))
def test_no_placement_is_faster_than_the_floor_and_the_planner_finds_one_of_the_fastest(seed):
    load = _step(seed, num_rows=2, num_experts=4)
    cluster = replace(_CLUSTER, redundant_slots=0)
    plan = solve(
        load,
        Schedule.round_robin(8, 2, cluster),
        Model(num_layers=1, num_experts=4, top_k=1),
        cluster,
        PlanParams(cost=_COST),
    )
    times = {each: _time_without_replicas(load, np.array(each)) for each in permutations(range(4))}
    us_per_token = _COST.saved_us(1)
    assert plan.prediction.time_floor_us <= min(times.values()) * us_per_token
    planned = times[tuple(plan.home_rank_LE[0].tolist())]
    assert plan.prediction.time_us == pytest.approx(planned * us_per_token, rel=1e-3)
    assert planned <= 1.01 * min(times.values())


def _fastest(load, home_E):
    """Return the least time of every row over all ways to divide tokens, with one slot a rank, at 3 tokens a copy."""
    total = 0.0
    for row in range(load.num_rows):
        of_node_NE = load.source_load_RLE(row)[:, 0].reshape(2, 2, -1).sum(axis=1)
        leaves = max(of_node_NE[node, home_E // 2 != node].sum() for node in range(2)) / 2
        nodes = []
        for node in range(2):
            one, other = (int(np.flatnonzero(home_E == 2 * node + rank)[0]) for rank in range(2))
            local_2, crossing_2 = of_node_NE[node, [one, other]], of_node_NE[1 - node, [one, other]]
            moved = product(
                range(-local_2[1], local_2[0] + 1), range(-crossing_2[1], crossing_2[0] + 1)
            )  # from the first rank to the second, in a replica of either expert
            nodes.append(
                [
                    (
                        max(local_2[0] + crossing_2[0] - local - copies, local_2[1] + crossing_2[1] + local + copies),
                        max(crossing_2[0] - copies, crossing_2[1] + copies),
                    )
                    for local, copies in moved
                ]
            )
        total += min(
            max(one[0], other[0]) + 3 * max(one[1], other[1], leaves)
            for one, other in product(*(sorted(set(each)) for each in nodes))
        )
    return total


@pytest.mark.parametrize("seed", range(5))
def test_no_plan_of_a_tiny_step_is_faster_than_the_bounds_and_the_planner_finds_one_of_the_fastest(seed):
    source_load_MLRE = np.random.default_rng(seed).poisson(2.5, (2, 1, 4, 4))
    load = StepLoad.of_sources(source_load_MLRE)
    model, schedule = Model(num_layers=1, num_experts=4, top_k=1), Schedule.round_robin(8, 2, _CLUSTER)
    found = solve(load, schedule, model, _CLUSTER, PlanParams(cost=_COST))
    of_token_us = _COST.saved_us(1)
    times = {home: _fastest(load, np.array(home)) for home in permutations(range(4))}
    best = times[tuple(found.home_rank_LE[0].tolist())]
    assert found.prediction.time_bound_us <= best * of_token_us <= found.prediction.time_us
    assert found.prediction.time_floor_us <= min(times.values()) * of_token_us
    assert found.prediction.time_us <= 1.15 * min(times.values()) * of_token_us


def test_a_plan_says_how_far_its_time_is_from_the_bounds():
    load = _step(1, num_rows=3, num_experts=8)
    model, schedule = Model(num_layers=1, num_experts=8, top_k=1), Schedule.round_robin(12, 3, _CLUSTER)
    plan = solve(load, schedule, model, _CLUSTER, PlanParams(cost=_COST))
    found = plan.prediction
    gap = found.time_us / found.time_bound_us - 1
    assert f"experts and dispatch take {gap:.1%} longer than the lower bound of this placement" in plan.reason
    assert type(found)(**found.to_dict()) == found
    free = solve(load, schedule, model, _CLUSTER)
    assert free.prediction.time_us is None
    assert "time_us" not in free.prediction.to_dict()
