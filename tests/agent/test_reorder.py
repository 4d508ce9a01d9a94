"""How a reorder is cut into waves and undone; real messages travel in tests/distributed."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.placement import Move, Placement
from relibra.agent.reorder import inverse, waves_of
from relibra.planning import Cluster

SEEDS = st.integers(0, 2**32 - 1)


def contents(placement: Placement, cluster: Cluster) -> list[list[list[int]]]:
    """The expert in every (rank, layer, slot)."""
    return [placement.expert_of_slot(rank).tolist() for rank in range(cluster.num_ranks)]


def carried_out(slots: list[list[list[int]]], wave: list[Move]) -> list[list[list[int]]]:
    after = [[list(of_layer) for of_layer in of_rank] for of_rank in slots]
    for move in wave:
        assert slots[move.source_rank][move.layer][move.source_slot] == move.expert
        after[move.destination_rank][move.layer][move.destination_slot] = move.expert
    return after


@given(st.data(), SEEDS, st.integers(1, 3))
def test_S5_the_waves_of_all_stages_together_give_the_target(
    some: SimpleNamespace, data: st.DataObject, seed: int, num_stages: int
) -> None:
    """Every wave writes all slots it empties, and its inverse brings everything back."""
    model, cluster = data.draw(some.shapes)
    rng = np.random.default_rng(seed)
    start = Placement.identity(model, cluster).rehomed(some.homes(rng, model, cluster))
    target = start.rehomed(some.homes(rng, model, cluster))
    stage_layers = [range(stage, model.num_layers, num_stages) for stage in range(num_stages)]
    waves_of_stage = [waves_of(start.moves_to(target), stage_layers, stage) for stage in range(num_stages)]
    assert len({len(waves) for waves in waves_of_stage}) == 1
    slots = contents(start, cluster)
    for waves in waves_of_stage:
        for wave in waves:
            assert len({move.layer for move in wave}) <= 1
            before, slots = slots, carried_out(slots, wave)
            assert carried_out(slots, inverse(wave)) == before
    assert slots == contents(target, cluster)
