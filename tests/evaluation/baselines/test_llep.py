import numpy as np

from relibra.evaluation.baselines import llep
from relibra.evaluation.baselines.llep import spill
from relibra.planning import Cluster, Model


def test_excess_tokens_go_to_the_least_loaded_ranks_in_large_pieces():
    # Four ranks have one expert and at most 1000 tokens each. Expert 0 keeps 1000 tokens at home, and the other 1500 go
    # to the lightest ranks first.
    pieces = spill([2500, 800, 400, 300], [0, 1, 2, 3], num_ranks=4, max_tokens=1000, min_tokens=100)
    assert pieces == [(0, 0, 1000), (0, 3, 700), (0, 2, 600), (0, 1, 200), (1, 1, 800), (2, 2, 400), (3, 3, 300)]


def test_a_rank_keeps_room_for_its_own_experts_that_come_later():
    pieces = spill([600, 500, 100, 0], [0, 1, 1, 0], num_ranks=2, max_tokens=600, min_tokens=1)
    assert pieces == [(0, 0, 600), (1, 1, 500), (2, 1, 100)]


def test_small_spills_are_not_made_while_a_larger_one_can_be():
    pieces = spill([300, 90, 80], [0, 1, 2], num_ranks=3, max_tokens=100, min_tokens=50)
    assert pieces[:2] == [
        (0, 0, 100),
        (0, 2, 200),
    ]  # spills of 10 and 20 tokens are too small, so the least loaded takes all


def test_ranks_are_ordered_once_for_an_expert_whose_home_has_no_room():
    # Rank 0 has no room for expert 0, because expert 1 lives there too and comes later. Rank 2 takes 60 tokens and is
    # full; ranks 1 and 3 have less room than a spill needs. So the rest goes to the rank that was lightest at first.
    pieces = spill([100, 100, 90, 40, 95], [0, 0, 1, 2, 3], num_ranks=4, max_tokens=100, min_tokens=50)
    assert pieces[:2] == [(0, 2, 60), (0, 2, 40)]


def test_even_cells_are_left_alone():
    cluster, model = (
        Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1),
        Model(num_layers=1, num_experts=2, top_k=1),
    )
    assert not llep(np.array([[[12_000, 8_000]]]), model, cluster).is_replica_Q.any()
    assert llep(np.array([[[14_000, 6_000]]]), model, cluster).is_replica_Q.any()
