import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.shapes import shapes
from harness.distributed.plans import random_homes
from relibra.planning import Cluster, Model
from relibra.planning.places import Placement

SEEDS = st.integers(0, 2**32 - 1)


def contents(placement: Placement, cluster: Cluster) -> list[list[list[int]]]:
    """Return the expert in every (rank, layer, slot)."""
    return [placement.expert_of_slot(rank).tolist() for rank in range(cluster.num_ranks)]


def test_identity_is_plain_expert_parallelism() -> None:
    model, cluster = (
        Model(num_layers=2, num_experts=6, top_k=1),
        Cluster(num_nodes=1, gpus_per_node=3, redundant_slots=1),
    )
    assert contents(Placement.identity(model, cluster), cluster) == [[[0, 1]] * 2, [[2, 3]] * 2, [[4, 5]] * 2]


@given(st.data(), SEEDS)
def test_rehoming_keeps_stayers_and_fills_every_slot_once(data: st.DataObject, seed: int) -> None:
    model, cluster = data.draw(shapes())
    rng = np.random.default_rng(seed)
    placement = Placement.identity(model, cluster)
    for _ in range(3):
        before, home_LE = placement, random_homes(rng, model, cluster)
        placement = before.with_homes(home_LE)
        assert np.array_equal(placement.home_rank_LE, home_LE)
        stays_LE = home_LE == before.home_rank_LE
        assert np.array_equal(placement.home_slot_LE[stays_LE], before.home_slot_LE[stays_LE])
        held = np.array(contents(placement, cluster))
        for layer in range(model.num_layers):
            assert sorted(held[:, layer].ravel().tolist()) == list(range(model.num_experts))
        place_LE = placement.home_rank_LE * cluster.experts_per_rank(model) + placement.home_slot_LE
        found_LE = np.take_along_axis(placement.expert_of_place_LE, place_LE, axis=1)
        assert (found_LE == np.arange(model.num_experts)).all()


@given(st.data(), SEEDS)
def test_who_stays_does_not_move(data: st.DataObject, seed: int) -> None:
    model, cluster = data.draw(shapes())
    rng = np.random.default_rng(seed)
    start = Placement.identity(model, cluster)
    home_LE = random_homes(rng, model, cluster)
    moves = start.moves_to(start.with_homes(home_LE))
    assert len(moves) == (home_LE != start.home_rank_LE).sum()
    assert all(move.source_rank != move.destination_rank for move in moves)
