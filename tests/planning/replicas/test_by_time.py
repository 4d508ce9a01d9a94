from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.planning import Cluster, CostModel, PlanParams, StepLoad
from relibra.planning.prices import ReplicaPrice
from relibra.planning.replicas.by_time import _as_split
from relibra.planning.replicas.replicate import FREE, replicate_layer
from relibra.planning.traffic import Traffic

_COST = CostModel(token_size_bytes=4096.0, inter_node_bytes_per_us=1024.0)  # a copy costs 3 tokens
_CLUSTER = Cluster(num_nodes=2, gpus_per_node=3, redundant_slots=2)


def _cells(seed, per_rank=2, num_rows=4):
    rng = np.random.default_rng(seed)
    source_load_MLRE = rng.poisson(300 * rng.lognormal(0, 1, (num_rows, 1, 6, 6 * per_rank)))
    load = StepLoad.of_sources(source_load_MLRE)
    home_E = (rng.permutation(6 * per_rank) // per_rank).astype(np.int32)
    return load, home_E


def _traffic(load, cost=_COST, cluster=_CLUSTER):
    return Traffic.of(load, cluster, PlanParams(cost=cost)).layer(0)


def _time_of(load, home_E, layer, row, price=FREE):
    """Return a cell's time in tokens, from the counts by source rank."""
    source_RE = load.source_load_RLE(row)[:, 0].astype(float)
    begin, end = (layer.end_M[row - 1] if row else 0), layer.end_M[row]
    load_E = source_RE.sum(axis=0)
    of_node_NE = source_RE.reshape(2, 3, -1).sum(axis=1)
    tokens_R, enters_R, leaves_N = np.zeros(6), np.zeros(6), np.zeros(2)
    for expert, home in enumerate(home_E):
        tokens_R[home] += load_E[expert]
        enters_R[home] += of_node_NE[1 - home // 3, expert]
        leaves_N[1 - home // 3] += of_node_NE[1 - home // 3, expert]
    num_left_R, num_come_R = np.zeros(6, dtype=int), np.zeros(6, dtype=int)
    lines = (each[begin:end] for each in (layer.index_Y2, layer.tokens_Y, layer.crossing_Y))
    for (expert, rank), tokens, crossing in zip(*lines, strict=True):
        for end_rank, moved in ((home_E[expert], -1), (rank, 1)):
            tokens_R[end_rank] += moved * tokens
            enters_R[end_rank] += moved * crossing
        num_left_R[home_E[expert]] += 1
        num_come_R[rank] += 1
    busiest = max(num_left_R.max(), num_come_R.max())
    dispatch = 3 * max(enters_R.max(), leaves_N.max() / 3)
    return tokens_R.max() + dispatch + busiest * price.of_busiest + (busiest > 0) * price.of_cell


@given(
    seed=st.integers(0, 10**6),
    per_rank=st.integers(1, 3),
    least=st.integers(1, 200),
    of_busiest=st.integers(0, 300),
    of_cell=st.integers(0, 500),
)
@settings(max_examples=80, deadline=None)
def test_S2_replicas_fit_and_their_cells_take_as_long_as_said(seed, per_rank, least, of_busiest, of_cell):
    load, home_E = _cells(seed, per_rank)
    price = ReplicaPrice(least=least, of_busiest=of_busiest, of_cell=of_cell)
    traffic = _traffic(load)
    found = replicate_layer(load.load_MLE[:, 0], home_E, _CLUSTER, price, traffic)
    alone = replicate_layer(load.load_MLE[:, 0], home_E, replace(_CLUSTER, redundant_slots=0), price, traffic)
    assert (found.cost_M <= alone.cost_M).all()
    assert (home_E[found.index_Y2[:, 0]] // 3 == found.index_Y2[:, 1] // 3).all()
    assert (home_E[found.index_Y2[:, 0]] != found.index_Y2[:, 1]).all()
    for row in range(4):
        of_row = slice(found.end_M[row - 1] if row else 0, found.end_M[row])
        index_Y2, tokens_Y = found.index_Y2[of_row], found.tokens_Y[of_row]
        assert len(np.unique(index_Y2, axis=0)) == len(index_Y2)
        assert np.bincount(index_Y2[:, 1], minlength=6).max() <= 2
        taken_E = np.bincount(index_Y2[:, 0], tokens_Y, minlength=len(home_E))
        crossing_Y = found.crossing_Y[of_row]
        crosses_E = np.bincount(index_Y2[:, 0], crossing_Y, minlength=len(home_E))
        crossing_E = traffic.crossing_ME(load.load_MLE[:, 0], home_E // 3)[row]
        assert (crossing_Y >= 0).all()
        assert (crosses_E <= crossing_E).all()
        assert (taken_E - crosses_E <= load.load_MLE[row, 0] - crossing_E).all()
        assert found.cost_M[row] == pytest.approx(_time_of(load, home_E, found, row, price), abs=4)


def test_cells_are_faster_than_with_replicas_that_balance_tokens():
    times = []
    for seed in range(5):
        load, home_E = _cells(seed, per_rank=3, num_rows=16)
        load_ME, traffic = load.load_MLE[:, 0], _traffic(load)
        by_time, by_tokens = (replicate_layer(load_ME, home_E, _CLUSTER, traffic=each) for each in (traffic, None))
        by_tokens = _as_split(by_tokens, load_ME, traffic.crossing_ME(load_ME, home_E // 3), home_E, _CLUSTER)
        times += [[_time_of(load, home_E, each, row) for each in (by_time, by_tokens)] for row in range(16)]
    by_time, by_tokens = np.array(times).T
    assert (by_time <= by_tokens + 4).all()  # what copies cost is rounded
    assert by_time.sum() < 0.997 * by_tokens.sum()


def test_replicas_are_those_of_tokens_where_the_ranks_of_a_node_share_its_adapters():
    load, home_E = _cells(7)
    load_ME, price = load.load_MLE[:, 0], ReplicaPrice(least=5, of_busiest=9, of_cell=30)
    traffic = _traffic(load, replace(_COST, sends_once_per_node=True))
    found, free = (replicate_layer(load_ME, home_E, _CLUSTER, price, each) for each in (traffic, None))
    np.testing.assert_array_equal(found.index_Y2, free.index_Y2)
    np.testing.assert_array_equal(found.tokens_Y, free.tokens_Y)
    np.testing.assert_array_equal(found.limit_M, free.limit_M)
    busiest_M = traffic.of_nodes().busiest_M(load_ME, home_E // 3)
    np.testing.assert_allclose(found.cost_M - free.cost_M, 3 * busiest_M / 3, atol=1)
