"""The waves of a reorder and their inverses. Real messages travel in tests/distributed."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.shapes import shapes
from harness.distributed.plans import random_homes
from relibra.agent.homes.waves import Wave, experts_within, inverse, waves_of
from relibra.agent.placement import Move, Placement
from relibra.planning import Cluster, Model

SEEDS = st.integers(0, 2**32 - 1)


def contents(placement: Placement, cluster: Cluster) -> list[list[list[int]]]:
    """Return the expert in every (rank, layer, slot)."""
    return [placement.expert_of_slot(rank).tolist() for rank in range(cluster.num_ranks)]


def carried_out(slots: list[list[list[int]]], wave: list[Move]) -> list[list[list[int]]]:
    after = [[list(of_layer) for of_layer in of_rank] for of_rank in slots]
    for move in wave:
        assert slots[move.source_rank][move.layer][move.source_slot] == move.expert
        after[move.destination_rank][move.layer][move.destination_slot] = move.expert
    return after


@given(st.data(), SEEDS, st.integers(1, 3), st.integers(2, 5))
def test_S5_the_waves_of_all_stages_together_give_the_target(
    data: st.DataObject, seed: int, num_stages: int, limit: int
) -> None:
    """Every wave fills all slots that it empties, its inverse restores everything, and no rank exceeds its limit."""
    model, cluster = data.draw(shapes())
    rng = np.random.default_rng(seed)
    start = Placement.identity(model, cluster).with_homes(random_homes(rng, model, cluster))
    target = start.with_homes(random_homes(rng, model, cluster))
    stage_layers = [range(stage, model.num_layers, num_stages) for stage in range(num_stages)]
    moves = start.moves_to(target)
    waves_of_stage = [waves_of(moves, stage_layers, stage, limit) for stage in range(num_stages)]
    assert len({len(waves) for waves in waves_of_stage}) == 1
    slots = contents(start, cluster)
    for waves in waves_of_stage:
        for wave in waves:
            assert list(wave) == sorted(wave, key=lambda move: (move.layer, move.expert))
            for ranks in ([m.source_rank for m in wave], [m.destination_rank for m in wave]):
                assert max(Counter(ranks).values(), default=0) <= limit
            before, slots = slots, carried_out(slots, wave)
            assert carried_out(slots, inverse(wave)) == before
    assert slots == contents(target, cluster)


def test_S7_a_cycle_longer_than_a_wave_is_cut_and_one_expert_moves_twice() -> None:
    """Five experts form a cycle over two ranks, three of them on one rank, whose buffers hold two each way."""
    ranks, slots = [0, 1, 0, 1, 0], [0, 0, 1, 1, 2]
    ring = [Move(0, i, ranks[i], slots[i], ranks[(i + 1) % 5], slots[(i + 1) % 5]) for i in range(5)]
    waves = waves_of(ring, [[0]], 0, 2)
    assert [[move.expert for move in wave] for wave in waves] == [[0, 1, 2, 3], [3, 4]]
    assert waves[0][3][2:] == (1, 1, 0, 0)
    assert waves[1] == [Move(0, 3, 0, 0, 0, 2), Move(0, 4, 0, 2, 0, 0)]
    assert waves_of(ring, [[0]], 0, 3) == [ring]


def waves_anywhere(seed: int, limit: int) -> tuple[list[Wave], int]:
    """Return the waves, and the number of moves, where any of a rank's 16 experts may move anywhere: the worst case."""
    model = Model(num_layers=1, num_experts=128, top_k=1)
    cluster = Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=0)
    start = Placement.identity(model, cluster)
    target = start.with_homes(np.random.default_rng(seed).permutation(start.home_rank_LE[0])[None])
    moves = start.moves_to(target)
    return waves_of(moves, [[0]], 0, limit), len(moves)


@given(SEEDS, st.integers(2, 5))
def test_few_experts_move_twice(seed: int, limit: int) -> None:
    waves, num_moves = waves_anywhere(seed, limit)
    assert sum(map(len, waves)) <= 1.35 * num_moves


@pytest.mark.parametrize("limit", [2, 3, 4, 5])
def test_waves_are_few(limit: int) -> None:
    """The placements are fixed: of 100,000 others with a limit of 2, 189 need one to three waves more."""
    num_waves = [len(waves_anywhere(seed, limit)[0]) for seed in range(30)]
    assert max(num_waves) <= 2 * math.ceil(16 / limit) + 1
    assert np.mean(num_waves) <= 2 * math.ceil(16 / limit) - 2


@pytest.mark.parametrize("limit", [4, 8, 32])
def test_waves_take_experts_of_all_layers_and_are_hardly_more_than_the_busiest_rank_needs(limit: int) -> None:
    model = Model(num_layers=48, num_experts=128, top_k=8)
    cluster = Cluster(num_nodes=4, gpus_per_node=8, redundant_slots=0)
    start = Placement.identity(model, cluster)
    moves = start.moves_to(start.with_homes(random_homes(np.random.default_rng(0), model, cluster)))
    busiest = max(Counter(move.source_rank for move in moves).values())
    assert len(waves_of(moves, [range(48)], 0, limit)) <= math.ceil(busiest / limit) + 1


def test_S7_a_wave_is_as_large_as_its_buffers_and_never_less_than_a_cut_takes() -> None:
    assert experts_within(buffer_bytes=1000, expert_bytes=100) == 5
    assert experts_within(buffer_bytes=1000, expert_bytes=400) == 2
    assert experts_within(buffer_bytes=1, expert_bytes=0) == 2
