"""The waves of a reorder and their inverses. Real messages travel in tests/distributed."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.shapes import shapes
from harness.distributed.plans import random_homes
from relibra.planning import Cluster, Model
from relibra.planning.places import Move, Part, Placement
from relibra.planning.waves import BUFFER_BYTES, WaveSize, inverse, most_pieces, num_pieces, waves_of

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.builds(WaveSize, num_pieces=st.integers(1, 3), most_pieces=st.integers(2, 5))


def contents(placement: Placement, cluster: Cluster, num_pieces: int) -> dict[tuple[int, int, int, int], int]:
    """Return the expert in every (rank, layer, slot, piece)."""
    return {
        (rank, layer, slot, piece): int(expert)
        for rank in range(cluster.num_ranks)
        for (layer, slot), expert in np.ndenumerate(placement.expert_of_slot(rank))
        for piece in range(num_pieces)
    }


def carried_out(held: dict[tuple[int, int, int, int], int], wave: list[Move]) -> dict[tuple[int, int, int, int], int]:
    """Return what every place holds after a wave; fail if it leaves a place without an expert, or brings it two."""
    after, left, filled = dict(held), set(), set()
    for move in wave:
        for piece in range(move.part.start, move.part.stop):
            source = (move.source_rank, move.layer, move.source_slot, piece)
            destination = (move.destination_rank, move.layer, move.destination_slot, piece)
            assert held[source] == move.expert
            assert destination not in filled
            after[destination] = move.expert
            left.add(source)
            filled.add(destination)
    assert left == filled
    return after


@given(st.data(), SEEDS, st.integers(1, 3), SIZES, st.booleans())
def test_S5_S7_the_waves_of_all_stages_together_give_the_target(
    data: st.DataObject, seed: int, num_stages: int, size: WaveSize, any_slots: bool
) -> None:
    """Every wave fills all places that it empties, its inverse restores everything, and no rank exceeds its room."""
    model, cluster = data.draw(shapes())
    rng = np.random.default_rng(seed)
    start = Placement.identity(model, cluster).with_homes(random_homes(rng, model, cluster))
    target = start.with_homes(random_homes(rng, model, cluster))
    if any_slots:
        target = Placement.of_homes(target.home_rank_LE)
    stage_layers = [range(stage, model.num_layers, num_stages) for stage in range(num_stages)]
    moves = start.moves_to(target)
    of_stages = [waves_of(moves, stage_layers, stage, size, cluster.gpus_per_node) for stage in range(num_stages)]
    assert len({len(waves) for waves in of_stages}) == 1
    held = contents(start, cluster, size.num_pieces)
    for waves in of_stages:
        for wave in waves:
            assert list(wave) == sorted(wave, key=lambda move: (move.layer, move.expert, move.part))
            sent, arrived = Counter[int](), Counter[int]()
            for move in wave:
                sent[move.source_rank] += move.part.stop - move.part.start
                arrived[move.destination_rank] += move.part.stop - move.part.start
            assert max([*sent.values(), *arrived.values(), 0]) <= size.most_pieces
            before, held = held, carried_out(held, wave)
            assert carried_out(held, inverse(wave)) == before
    assert held == contents(target, cluster, size.num_pieces)
    if not any_slots:
        num_carried = sum(move.part.stop - move.part.start for waves in of_stages for wave in waves for move in wave)
        assert num_carried == size.num_pieces * len(moves), "no expert moves twice"


def test_S7_a_cycle_longer_than_a_wave_is_cut_and_one_expert_moves_twice() -> None:
    """Five experts form a cycle over two ranks, three of them on one rank, whose buffers hold two each way."""
    ranks, slots = [0, 1, 0, 1, 0], [0, 0, 1, 1, 2]
    ring = [Move(0, i, ranks[i], slots[i], ranks[(i + 1) % 5], slots[(i + 1) % 5]) for i in range(5)]
    first, second = waves_of(ring, [[0]], 0, WaveSize(1, 2), 2)
    assert [move.expert for move in first] == [0, 1, 2, 3]
    assert first[3][2:6] == (1, 1, 0, 0)
    assert second == [Move(0, 3, 0, 0, 0, 2), Move(0, 4, 0, 2, 0, 0)]
    assert waves_of(ring, [[0]], 0, WaveSize(1, 3), 2) == [ring]


def test_the_pieces_of_an_expert_fill_what_waves_have_left() -> None:
    swap = [Move(0, 0, 0, 0, 1, 0), Move(0, 1, 1, 0, 0, 0)]
    parts = [[move.part for move in wave] for wave in waves_of(swap, [[0]], 0, WaveSize(5, 2), 2)]
    assert parts == [[Part(0, 2, 5)] * 2, [Part(2, 4, 5)] * 2, [Part(4, 5, 5)] * 2]


@pytest.mark.parametrize(
    ("num_layers", "num_experts", "num_nodes", "expert_bytes"),
    [(58, 256, 8, 616_562_688), (94, 128, 4, 264_241_152), (48, 128, 2, 66_060_288)],
    ids=["deepseek-v3", "qwen3-235b", "qwen3-30b"],
)
@pytest.mark.parametrize(("share", "most"), [(0.08, 1.15), (1.0, 1.2)], ids=["later moves", "first placement"])
def test_waves_are_hardly_more_than_the_busiest_rank_needs(
    num_layers: int, num_experts: int, num_nodes: int, expert_bytes: int, share: float, most: float
) -> None:
    """A part of each layer's experts, or all of them, move anywhere."""
    model = Model(num_layers=num_layers, num_experts=num_experts, top_k=8)
    cluster = Cluster(num_nodes=num_nodes, gpus_per_node=8, redundant_slots=0)
    rng, home_LE = np.random.default_rng(0), cluster.identity_placement(model)
    for home_E in home_LE:
        moving = rng.choice(num_experts, int(share * num_experts), replace=False)
        home_E[moving] = home_E[rng.permutation(moving)]
    start = Placement.identity(model, cluster)
    moves = start.moves_to(start.with_homes(home_LE))
    size = WaveSize.of(BUFFER_BYTES, expert_bytes)
    busiest = max(Counter(move.source_rank for move in moves).values())
    fewest = math.ceil(busiest * size.num_pieces / size.most_pieces)
    waves = waves_of(moves, [range(num_layers)], 0, size, 8)
    assert len(waves) <= most * fewest


def test_S7_buffers_hold_a_wave_and_what_the_wave_before_sent() -> None:
    size = WaveSize.of(BUFFER_BYTES, 616_562_688)
    assert size == (14, 8)
    assert 3 * size.most_pieces * math.ceil(616_562_688 / size.num_pieces) <= BUFFER_BYTES
    assert WaveSize.of(BUFFER_BYTES, 1 << 20) == (1, 341)
    assert num_pieces(buffer_bytes=1, expert_bytes=5 << 20) == 5
    assert num_pieces(buffer_bytes=1, expert_bytes=0) == 1
    assert most_pieces(buffer_bytes=1, piece_bytes=1 << 20) == 2
