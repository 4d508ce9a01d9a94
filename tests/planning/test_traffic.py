from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.modelled_time import modelled_us
from relibra.evaluation.assignment import Assignment, at_home
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.plan import Level
from relibra.planning.solve import solve
from relibra.planning.traffic import Traffic

_TWO_NODES = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
_MODEL = Model(num_layers=2, num_experts=8, top_k=1)
_FREE = CostModel.tokens()
_DEAR = replace(_FREE, token_size_bytes=4096.0, inter_node_bytes_per_us=1024.0)


def _two_domains(odd_share: float, seed: int = 0):
    """Node 0 routes to even experts and node 1 to odd ones, except for a share of the tokens that does the opposite."""
    rng = np.random.default_rng(seed)
    prefers_NE = np.stack([np.arange(8) % 2 == node for node in range(2)])
    weight_NE = np.where(prefers_NE, 1 - odd_share, odd_share)
    source_load_MLRE = rng.poisson(1000 * np.repeat(weight_NE, 2, axis=0), (4, 2, 4, 8))
    return StepLoad.of_sources(source_load_MLRE), Schedule.round_robin(16, 4, _TWO_NODES)


def _crossing_share(plan, load):
    source_MRLE = np.stack([load.source_load_RLE(row) for row in range(load.num_rows)])
    node_LE = plan.home_rank_LE // plan.cluster.gpus_per_node
    source_node_R = np.arange(load.num_ranks) // plan.cluster.gpus_per_node
    crosses_RLE = source_node_R[:, None, None] != node_LE
    return (source_MRLE * crosses_RLE).sum() / source_MRLE.sum()


def _brute_force(load, node_E, layer, row):
    """Return the copies that enter and that leave every node."""
    of_node_NE = load.source_load_RLE(row)[:, layer].reshape(2, 2, -1).sum(axis=1)
    crosses_NE = np.arange(2)[:, None] != node_E
    leaves_N = (of_node_NE * crosses_NE).sum(axis=1)
    return [(of_node_NE * crosses_NE)[:, node_E == node].sum() for node in range(2)], leaves_N


@given(seed=st.integers(0, 10**6), odd_share=st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_copies_are_counted_where_they_enter_and_leave(seed, odd_share):
    load, _ = _two_domains(odd_share, seed)
    node_E = np.random.default_rng(seed).permutation(8) % 2
    traffic = Traffic.of(load, _TWO_NODES, PlanParams(cost=_DEAR))
    for layer in range(2):
        of_layer, load_ME = traffic.layer(layer), load.load_MLE[:, layer]
        busiest_M, leaving_M = of_layer.of_nodes().busiest_M(load_ME, node_E), of_layer.leaving_M(node_E)
        crossing_ME = of_layer.crossing_ME(load_ME, node_E)
        for row in range(4):
            enters_N, leaves_N = _brute_force(load, node_E, layer, row)
            assert busiest_M[row] == max(*enters_N, *leaves_N)
            assert leaving_M[row] == max(leaves_N)
            assert crossing_ME[row, node_E == 1].sum() == enters_N[1]


def test_a_rank_of_an_all_to_all_receives_its_own_copies():
    load, _ = _two_domains(0.25)
    of_layer, load_ME = Traffic.of(load, _TWO_NODES, PlanParams(cost=_DEAR)).layer(0), load.load_MLE[:, 0]
    home_E = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    enters_MR = of_layer.crossing_ME(load_ME, home_E // 2).reshape(4, 4, 2).sum(axis=-1)
    np.testing.assert_array_equal(of_layer.of_ranks(2).busiest_M(load_ME, home_E), enters_MR.max(axis=1))
    inside = of_layer.of_ranks_inside(1, np.arange(4, 8), 2)
    np.testing.assert_array_equal(inside.busiest_M(load_ME[:, 4:], home_E[4:] - 2), enters_MR[:, 2:].max(axis=1))


def test_the_price_of_a_copy_is_what_the_cost_model_says():
    load, _ = _two_domains(0.25)
    # 3 crossings of 4096 bytes at 1024 bytes/us take 12 us, and a token 4 passes of 1 us.
    traffic = Traffic.of(load, _TWO_NODES, PlanParams(cost=_DEAR))
    assert _DEAR.crossing_tokens == 3.0
    assert traffic.layer(0).of_nodes().tokens(100) == 300
    assert traffic.by_rank
    assert not Traffic.of(load, _TWO_NODES, PlanParams(cost=replace(_DEAR, sends_once_per_node=True))).by_rank
    endless = replace(_DEAR, token_size_bytes=1e30)
    assert Traffic.of(load, _TWO_NODES, PlanParams(cost=endless)).layer(0).of_nodes().tokens(1) == 2**14


@pytest.mark.parametrize("params", [PlanParams(), PlanParams(cost=_FREE)])
def test_dispatch_is_free_where_nothing_says_how_large_a_token_is(params):
    load, _ = _two_domains(0.25)
    assert Traffic.of(load, _TWO_NODES, params) is None


def test_one_node_has_nothing_to_cross():
    load, _ = _two_domains(0.25)
    assert Traffic.of(load, replace(_TWO_NODES, num_nodes=1, gpus_per_node=4), PlanParams(cost=_DEAR)) is None


def test_a_step_without_sequences_has_no_traffic():
    empty = StepLoad(
        counts_SLE=np.zeros((0, 2, 8), dtype=np.uint8),
        row_S=np.zeros(0, dtype=np.int32),
        source_rank_S=np.zeros(0, dtype=np.int32),
        num_rows=4,
        num_ranks=4,
    )
    assert not Traffic.of(empty, _TWO_NODES, PlanParams(cost=_DEAR)).layer(1).local_NEM.any()


def test_sources_do_not_change_a_plan_where_dispatch_is_free():
    load, schedule = _two_domains(0.1)
    elsewhere = replace(load, source_rank_S=load.source_rank_S[::-1].copy())
    one, other = (solve(each, schedule, _MODEL, _TWO_NODES, PlanParams(cost=_FREE)) for each in (load, elsewhere))
    for name in ("home_rank_LE", "replica_index_Y4", "replica_tokens_Y", "load_MLE", "lower_bound_ML"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.reason == other.reason
    assert one.prediction == other.prediction
    assert "dispatch" not in one.reason


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("slots", [0, 1])
def test_experts_move_to_the_tokens_that_ask_for_them(slots, once):
    load, schedule = _two_domains(0.1)
    cluster = replace(_TWO_NODES, redundant_slots=slots)
    dear = replace(_DEAR, sends_once_per_node=once)
    unaware, aware = (
        solve(load, schedule, _MODEL, cluster, PlanParams(min_tokens_per_replica=1, cost=cost))
        for cost in (_FREE, dear)
    )
    assert _crossing_share(unaware, load) > 0.4
    assert _crossing_share(aware, load) == pytest.approx(0.1, abs=0.02)
    assert aware.prediction.imbalance_after < 1.1


_STEPS = {
    "seed": st.integers(0, 10**6),
    "odd_share": st.floats(0, 1),
    "slots": st.integers(0, 2),
    "price": st.floats(1, 1e5) | st.floats(1e5, 1e9),
}


@given(**_STEPS, once=st.booleans())
@settings(max_examples=40, deadline=None)
def test_S2_plans_that_count_dispatch_are_valid(seed, odd_share, slots, price, once):
    load, schedule = _two_domains(odd_share, seed)
    cost = replace(_DEAR, token_size_bytes=price, sends_once_per_node=once)
    plan = solve(load, schedule, _MODEL, replace(_TWO_NODES, redundant_slots=slots), PlanParams(cost=cost))
    check_plan(plan, load.load_MLE)


@given(**_STEPS)
@settings(max_examples=40, deadline=None)
def test_plans_take_no_longer_than_plain_expert_parallelism_nor_than_plans_of_tokens(seed, odd_share, slots, price):
    load, schedule = _two_domains(odd_share, seed)
    cost = replace(_DEAR, token_size_bytes=price)
    cluster = replace(_TWO_NODES, redundant_slots=slots)
    plan = solve(load, schedule, _MODEL, cluster, PlanParams(cost=cost))
    of_tokens = solve(load, schedule, _MODEL, cluster, PlanParams(cost=replace(cost, token_size_bytes=0.0)))
    plain = at_home(load.load_MLE, cluster.identity_placement(_MODEL))
    plan_us, of_tokens_us, plain_us = (
        modelled_us(each, load, cluster, cost)
        for each in (Assignment.of_plan(plan, load), Assignment.of_plan(of_tokens, load), plain)
    )
    assert plan_us <= 1.001 * plain_us
    assert plan_us <= 1.01 * of_tokens_us
    assert plan.prediction.time_us == pytest.approx(plan_us, rel=1e-9)


@pytest.mark.parametrize("level", Level)
def test_the_time_of_a_plan_is_that_of_the_sources_that_it_has_for_replicas(level):
    load, schedule = _two_domains(0.35)
    skewed = replace(load, counts_SLE=load.counts_SLE * np.array([9, 1, 1, 1, 1, 1, 5, 1]))
    plan = solve(skewed, schedule, _MODEL, _TWO_NODES, PlanParams(cost=_DEAR), level=level)
    check_plan(plan, skewed.load_MLE)
    assert plan.prediction.num_replicas
    assignment = Assignment.of_plan(plan, skewed)
    assert plan.prediction.time_us == pytest.approx(modelled_us(assignment, skewed, _TWO_NODES, _DEAR), rel=1e-3)
    assert plan.prediction.time_bound_us <= plan.prediction.time_us


@pytest.mark.parametrize("once", [False, True])
def test_S8_plans_that_count_dispatch_are_the_same_for_any_number_of_threads(once):
    load, schedule = _two_domains(0.3)
    params = PlanParams(cost=replace(_DEAR, sends_once_per_node=once))
    one, again, other = (
        solve(load, schedule, _MODEL, _TWO_NODES, params, num_threads=number).digest for number in (1, 1, 3)
    )
    assert one == again == other


@pytest.mark.parametrize("sends_once_per_node", [False, True])
def test_S7_no_price_is_too_high_and_no_step_too_empty(sends_once_per_node):
    load, schedule = _two_domains(0.2)
    empty = StepLoad.of_sources(np.zeros((4, 2, 4, 8), dtype=np.int64))
    cost = replace(_DEAR, token_size_bytes=1e30, sends_once_per_node=sends_once_per_node)
    for each in (load, empty):
        check_plan(solve(each, schedule, _MODEL, _TWO_NODES, PlanParams(cost=cost)), each.load_MLE)


def test_S7_no_load_overflows_at_the_highest_price():
    """A cell has 2**40 copies, and each counts for 2**14 tokens. Loads are nearly even, so the search ends at once."""
    source_load_MLRE = np.random.default_rng(0).integers((1 << 29) - 1000, 1 << 29, (1, 1, 4, 512))
    load, model = StepLoad.of_sources(source_load_MLRE), Model(num_layers=1, num_experts=512, top_k=1)
    cost = replace(_DEAR, token_size_bytes=1e30)
    plan = solve(load, Schedule.round_robin(4, 1, _TWO_NODES), model, _TWO_NODES, PlanParams(cost=cost))
    check_plan(plan, load.load_MLE)
    plan_us, plain_us = (
        modelled_us(each, load, _TWO_NODES, cost)
        for each in (Assignment.of_plan(plan, load), at_home(load.load_MLE, _TWO_NODES.identity_placement(model)))
    )
    assert plan.prediction.time_us == pytest.approx(plan_us, rel=1e-9)
    assert plan.prediction.time_bound_us <= plan.prediction.time_us <= plain_us
