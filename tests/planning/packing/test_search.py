"""The search for places of sequences, against sums that a test makes one by one."""

import numpy as np
import pytest

from relibra.planning import Cluster
from relibra.planning.packing.caps import Caps
from relibra.planning.packing.changes import MOVE, SWAP, SWAP_IN_ROW, Changes
from relibra.planning.packing.search import find_places
from relibra.planning.traffic import UNIT_BITS

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
_ALL = Changes(source_X=np.arange(4), kind_4=np.array([MOVE, SWAP_IN_ROW, SWAP, SWAP]), max_work=10**8)
_PRICE = 3 << UNIT_BITS  # a copy at the busiest group costs 3 tokens


def _step(seed, num_groups, num_rows=3, num_sequences=36):
    """Return the loads, sizes, places and caps of sequences, each of which prefers one group of every layer."""
    rng = np.random.default_rng(seed)
    load_SLP = rng.integers(0, 20, (num_sequences, 2, num_groups))
    np.put_along_axis(load_SLP, rng.integers(0, num_groups, (num_sequences, 1, 1)), 100, axis=2)
    size_S2 = np.stack([rng.integers(50, 80, num_sequences)] * 2, axis=1)
    cell_S = np.arange(num_sequences) % (num_rows * _CLUSTER.num_ranks)
    held_C2, tokens_MN = _held(size_S2, cell_S, num_rows)
    caps = Caps(
        rank_M2=held_C2.reshape(num_rows, -1, 2).max(axis=1) * 11 // 10,
        node_M=tokens_MN.max(axis=1) * 11 // 10,
        row_2=np.array([tokens_MN.sum(axis=1).min() - 50, tokens_MN.sum(axis=1).max() + 50]),
    )
    return load_SLP, size_S2, cell_S, caps


def _held(size_S2, cell_S, num_rows):
    held_C2 = np.zeros((num_rows * _CLUSTER.num_ranks, 2), dtype=np.int64)
    np.add.at(held_C2, cell_S, size_S2)
    return held_C2, held_C2[:, 0].reshape(num_rows, _CLUSTER.num_nodes, -1).sum(axis=2)


def _objective(load_SLP, cell_S, price):
    """Return tokens of the largest group, and copies of the busiest one, of every cell."""
    num_sequences, num_layers, num_groups = load_SLP.shape
    per_node = num_groups // 2
    total = 0
    for row in range(cell_S.max() // 4 + 1):
        in_row = [each for each in range(num_sequences) if cell_S[each] // 4 == row]
        for layer in range(num_layers):
            loads, copies = [], []
            for group in range(num_groups):
                node = group // per_node
                load = sum(load_SLP[each, layer, group] for each in in_row)
                enters = sum(load_SLP[each, layer, group] for each in in_row if cell_S[each] % 4 // 2 != node)
                leaves = sum(
                    load_SLP[each, layer].sum() - load_SLP[each, layer, group]
                    for each in in_row
                    if cell_S[each] % 4 // 2 == node and per_node == 1
                )
                loads.append(load)
                copies.append(max(enters, leaves))
            total += (max(loads) << UNIT_BITS) + price * max(copies)
    return total


@pytest.mark.parametrize("num_groups", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_the_time_falls_and_caps_hold(seed, num_groups):
    load_SLP, size_S2, cell_S, caps = _step(seed, num_groups)
    found_S = find_places(load_SLP, size_S2, cell_S, _PRICE, _CLUSTER, caps, _ALL, seed)
    assert _objective(load_SLP, found_S, _PRICE) < 0.9 * _objective(load_SLP, cell_S, _PRICE)
    held_C2, tokens_MN = _held(size_S2, found_S, 3)
    assert (held_C2.reshape(3, -1, 2) <= caps.rank_M2[:, None]).all()
    assert (tokens_MN <= caps.node_M[:, None]).all()
    tokens_M = tokens_MN.sum(axis=1)
    assert caps.row_2[0] <= tokens_M.min() <= tokens_M.max() <= caps.row_2[1]


def test_a_dear_copy_brings_sequences_to_their_experts_and_a_free_one_evens_loads():
    load_SLP, size_S2, cell_S, caps = _step(4, 2)
    dear_S, free_S = (
        find_places(load_SLP, size_S2, cell_S, price, _CLUSTER, caps, _ALL, 0) for price in (100 << UNIT_BITS, 0)
    )
    assert _objective(load_SLP, free_S, 0) <= _objective(load_SLP, dear_S, 0)
    only_copies = [_objective(load_SLP, each, 1) - _objective(load_SLP, each, 0) for each in (dear_S, free_S)]
    assert only_copies[0] < 0.9 * only_copies[1]


def test_S8_equal_inputs_give_equal_places_and_the_highest_price_does_not_overflow():
    load_SLP, size_S2, cell_S, caps = _step(5, 2)
    huge_SLP = load_SLP << 40
    one_S, other_S = (find_places(huge_SLP, size_S2, cell_S, 1 << 24, _CLUSTER, caps, _ALL, 7) for _ in range(2))
    np.testing.assert_array_equal(one_S, other_S)
    assert _objective(load_SLP, one_S, 1 << 24) < _objective(load_SLP, cell_S, 1 << 24)
