"""Loads made to break a planner: every plan must be valid and as good as expected, and nothing may overflow."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning import Cluster, Model, Schedule, StepLoad, check_plan, imbalance
from relibra.planning.load import home_loads
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.replicate import replicate_layer
from relibra.planning.solve import solve

_LARGEST = np.iinfo(np.int32).max


def _step(load_MLE, num_nodes, gpus_per_node, slots):
    """Plan a load whose tokens come about evenly from all source ranks, and check the plan."""
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=gpus_per_node, redundant_slots=slots)
    num_rows, num_layers, num_experts = load_MLE.shape
    ranks = np.arange(cluster.num_ranks)[:, None]
    source_load = (load_MLE[:, :, None] + ranks) // cluster.num_ranks
    load = StepLoad.of_sources(source_load.astype(np.int32))
    schedule = Schedule.round_robin(num_rows, num_rows, cluster)
    model = Model(num_layers=num_layers, num_experts=num_experts, top_k=1)
    plan = solve(load, schedule, model, cluster)
    np.testing.assert_array_equal(load.load_MLE, load_MLE)
    check_plan(plan, load_MLE)
    plain = imbalance(home_loads(load_MLE, cluster.identity_placement(model), cluster.num_ranks))
    assert plan.prediction.imbalance_after <= plain
    assert plan.prediction.imbalance_floor <= plan.prediction.imbalance_after + 1e-12
    assert plan.prediction.imbalance_bound <= plan.prediction.imbalance_after + 1e-12
    return plan


@pytest.mark.parametrize("slots", range(9))
@pytest.mark.parametrize("experts_per_rank", [1, 4])
def test_all_tokens_to_one_expert(slots, experts_per_rank):
    load_MLE = np.zeros((3, 2, 8 * experts_per_rank), dtype=np.int64)
    load_MLE[..., 3] = 8000
    slowest_ML = _step(load_MLE, 2, 4, slots).rank_loads_MLR.max(axis=-1)
    assert (slowest_ML == (2000 if slots else 8000)).all()


@pytest.mark.parametrize(("num_nodes", "gpus_per_node"), [(1, 1), (1, 8), (8, 1), (4, 8), (16, 8)])
def test_one_expert_a_rank(num_nodes, gpus_per_node):
    rng = np.random.default_rng(0)
    load_MLE = rng.poisson(rng.lognormal(6, 1, (4, 2, num_nodes * gpus_per_node)))
    plan = _step(load_MLE, num_nodes, gpus_per_node, 2)
    if num_nodes == 1:
        assert plan.prediction.imbalance_after == plan.prediction.imbalance_bound


def test_layers_without_load():
    rng = np.random.default_rng(0)
    load_MLE = rng.poisson(rng.lognormal(5, 1, (4, 3, 32)))
    load_MLE[:, 1] = 0
    load_MLE[2] = 0
    plan = _step(load_MLE, 2, 4, 2)
    assert (plan.rank_loads_MLR[:, 1] == 0).all()
    assert (plan.home_rank_LE[1] == plan.cluster.identity_placement(plan.model)[1]).all()


@pytest.mark.parametrize("num_tokens", [1, 3, 7])
def test_a_micro_batch_with_fewer_tokens_than_ranks(num_tokens):
    rng = np.random.default_rng(num_tokens)
    load_MLE = np.zeros((4, 2, 32), dtype=np.int64)
    for row, layer in np.ndindex(4, 2):
        np.add.at(load_MLE[row, layer], rng.integers(0, 32, num_tokens), 1)
    slowest_ML = _step(load_MLE, 1, 8, 2).rank_loads_MLR.max(axis=-1)
    assert (slowest_ML == 1).all()


@pytest.mark.parametrize(("num_nodes", "slots"), [(1, 2), (4, 2), (4, 8)])
def test_zipf_loads_with_exponent_2(num_nodes, slots):
    """The largest of 64 experts has 61 % of the tokens: no problem on a single node, far too much for one of four."""
    rng = np.random.default_rng(0)
    share_E = 1 / np.arange(1, 65) ** 2.0
    load_MLE = np.stack([rng.multinomial(50_000, rng.permutation(share_E / share_E.sum()), 3) for _ in range(8)])
    numbers = _step(load_MLE, num_nodes, 8, slots).prediction
    assert numbers.imbalance_after <= 1.01 * numbers.imbalance_floor
    assert numbers.imbalance_floor >= 0.6 * num_nodes


@pytest.mark.parametrize("slots", [0, 1, 8])
def test_loads_near_the_largest_int32(slots):
    load_MLE = np.full((2, 2, 16), _LARGEST, dtype=np.int64)
    load_MLE[0, :, 5:] = 1
    load_MLE[1, 0, ::2] = _LARGEST - np.arange(8)
    plan = _step(load_MLE, 2, 4, slots)
    assert plan.rank_loads_MLR.sum() == load_MLE.sum() > 2**36


@pytest.mark.parametrize(("num_nodes", "gpus_per_node"), [(64, 8), (1, 512), (512, 1), (8, 64), (1, 1)])
@pytest.mark.parametrize("slots", [0, 8])
def test_512_experts(num_nodes, gpus_per_node, slots):
    rng = np.random.default_rng(0)
    load_MLE = rng.poisson(rng.lognormal(4, 1.5, (2, 1, 512)))
    _step(load_MLE, num_nodes, gpus_per_node, slots)


_nodes = st.builds(
    lambda seed, num_ranks, per_rank, skew, is_sorted: (seed, num_ranks, per_rank, skew, is_sorted),
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([0.3, 1.0, 2.0]),
    st.booleans(),
)


def _load(node):
    seed, num_ranks, per_rank, skew, is_sorted = node
    rng = np.random.default_rng(seed)
    load_ME = rng.poisson(rng.lognormal(0, skew, (4, num_ranks * per_rank)) * 2000).astype(np.int64)
    if is_sorted:
        load_ME.sort(axis=-1)
    return load_ME, np.repeat(np.arange(num_ranks, dtype=np.int32), per_rank)


def _slowest_M(load_ME, home_E, slots):
    cluster = Cluster(num_nodes=1, gpus_per_node=int(home_E.max()) + 1, redundant_slots=slots)
    return replicate_layer(load_ME, home_E, cluster).limit_M


@given(node=_nodes, slots=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_more_slots_are_never_worse(node, slots):
    load_ME, home_E = _load(node)
    assert (_slowest_M(load_ME, home_E, slots + 1) <= 1.001 * _slowest_M(load_ME, home_E, slots)).all()


def _slowest_under_other_names(node, slots, shuffle):
    load_ME, home_E = _load(node)
    rng = np.random.default_rng(shuffle)
    order_E, name_R = rng.permutation(load_ME.shape[-1]), rng.permutation(home_E.max() + 1).astype(np.int32)
    return _slowest_M(load_ME[:, order_E], name_R[home_E[order_E]], slots), _slowest_M(load_ME, home_E, slots)


@given(node=_nodes, slots=st.integers(0, 4), shuffle=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_other_names_of_experts_and_ranks_change_nothing(node, slots, shuffle):
    renamed_M, found_M = _slowest_under_other_names(node, slots, shuffle)
    np.testing.assert_allclose(renamed_M, found_M, rtol=1e-3)


def test_other_names_change_nothing_where_the_order_of_visits_matters():
    """Rules that visit experts by index find 83,130 tokens with some names, and 84,005 with others."""
    renamed_M, found_M = _slowest_under_other_names((3, 8, 4, 2.0, True), slots=1, shuffle=5)
    np.testing.assert_allclose(renamed_M, found_M, rtol=1e-3)


def test_other_names_change_nothing_where_replicas_have_a_least_size():
    """Rules that visit ranks by index find 57 tokens with some names, and 61 with others."""
    load_E = np.array([1, 5, 8, 8, 10, 11, 16, 17, 18, 24, 25, 36, 36, 39, 52, 96])
    home_E = np.repeat(np.arange(8, dtype=np.int32), 2)
    cluster, price = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=3), ReplicaPrice(least=32)
    rng, limits = np.random.default_rng(7), set()
    for _ in range(20):
        order_E, name_R = rng.permutation(16), rng.permutation(8).astype(np.int32)
        limits.add(int(replicate_layer(load_E[None, order_E], name_R[home_E[order_E]], cluster, price).limit_M[0]))
    assert len(limits) == 1


@given(node=_nodes, slots=st.integers(0, 4), factor=st.sampled_from([2, 7, 100_000]))
@settings(max_examples=100, deadline=None)
def test_larger_loads_of_the_same_shape_change_nothing(node, slots, factor):
    load_ME, home_E = _load(node)
    scaled_M = _slowest_M(load_ME * factor, home_E, slots) / factor
    np.testing.assert_allclose(scaled_M, _slowest_M(load_ME, home_E, slots), rtol=1e-3, atol=1.0)


def _steps(seed, num_layers=2):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.lognormal(0, 1, (1, num_layers, 64)) * rng.lognormal(0, 0.4, (8, num_layers, 64)) * 500)


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2))])
@pytest.mark.parametrize(("num_nodes", "gpus_per_node"), [(1, 8), (2, 8), (4, 4)])
def test_whole_plans_do_not_depend_on_names_or_scale(seed, num_nodes, gpus_per_node):
    load_MLE = _steps(seed)
    order_E = np.random.default_rng(seed).permutation(64)
    found = _step(load_MLE, num_nodes, gpus_per_node, 2).prediction.imbalance_after
    renamed = _step(load_MLE[..., order_E], num_nodes, gpus_per_node, 2).prediction.imbalance_after
    scaled = _step(load_MLE * 1000, num_nodes, gpus_per_node, 2).prediction.imbalance_after
    assert renamed == pytest.approx(found, rel=0.01)
    assert scaled == pytest.approx(found, rel=0.01)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(("num_nodes", "gpus_per_node"), [(1, 8), (2, 8), (4, 4)])
def test_whole_plans_with_more_slots_are_never_worse(seed, num_nodes, gpus_per_node):
    load_MLE = _steps(seed)
    imbalances = [_step(load_MLE, num_nodes, gpus_per_node, slots).prediction.imbalance_after for slots in range(9)]
    for fewer, more in pairwise(imbalances):
        assert more <= 1.001 * fewer
