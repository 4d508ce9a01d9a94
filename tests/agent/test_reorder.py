"""The order of packing and unpacking; real messages travel in tests/distributed."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.placement import Placement
from relibra.agent.reorder import outgoing
from relibra.planning import Cluster

SEEDS = st.integers(0, 2**32 - 1)


def contents(placement: Placement, cluster: Cluster) -> list[list[list[int]]]:
    """The expert in every (rank, layer, slot)."""
    return [placement.expert_of_slot(rank).tolist() for rank in range(cluster.num_ranks)]


@given(st.data(), SEEDS)
def test_S5_carrying_out_the_moves_gives_the_target(some: SimpleNamespace, data: st.DataObject, seed: int) -> None:
    """Ranks pack everything that leaves before anything arrives; both ends of a message agree on its order."""
    model, cluster = data.draw(some.shapes)
    rng = np.random.default_rng(seed)
    start = Placement.identity(model, cluster).rehomed(some.homes(rng, model, cluster))
    for target in (start.rehomed(some.homes(rng, model, cluster)), Placement.identity(model, cluster)):
        moves = start.moves_to(target)
        slots = contents(start, cluster)
        for layer in range(model.num_layers):
            of_layer = [move for move in moves if move.layer == layer]
            pairs = [(a, b) for a in range(cluster.num_ranks) for b in range(cluster.num_ranks)]
            messages = {
                (a, b): [slots[a][layer][move.source_slot] for move in outgoing(of_layer, a, b)] for a, b in pairs
            }
            for a, b in pairs:
                for move, expert in zip(outgoing(of_layer, a, b), messages[a, b], strict=True):
                    assert expert == move.expert
                    slots[b][layer][move.destination_slot] = expert
        assert slots == contents(target, cluster)
        assert not target.moves_to(target)
