from dataclasses import replace

import numpy as np
import pytest
from small_training import EVEN, HOME_LE, TRAINING

from relibra.evaluation.assignment import at_home, from_pieces
from relibra.evaluation.cell_time import balanced_cells, cells_of
from relibra.planning import Cluster, StepLoad


def test_experts_wait_for_the_slowest_rank():
    load = StepLoad.of_sources(np.array([[[[10, 10, 10, 70]]]]).repeat(4, axis=2))
    cells = cells_of(at_home(load.load_MLE, HOME_LE), load, TRAINING)
    assert cells.experts_ML.item() == 10 + 280


def test_dispatch_waits_for_the_slowest_adapter():
    # Of 40 tokens of each expert 20 come from its own node and 20 from the other one.
    cells = cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, TRAINING)
    assert cells.dispatch_ML.item() == 20 * 400 / 40
    one_node = replace(TRAINING, cluster=Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1))
    assert cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, one_node).dispatch_ML.item() == 40 * 0.75 * 400 / 400


def test_a_token_sent_once_a_node_takes_less_of_the_network():
    once = replace(TRAINING, sends_once_per_node=True)
    assert once.distinct_share == pytest.approx(0.75)  # 1 - (1/2)**2 messages for 2 x 1/2 copies
    cells = cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, once)
    assert cells.dispatch_ML.item() == pytest.approx(0.75 * 20 * 400 / 40)


def test_tokens_that_stay_on_their_node_do_not_use_the_network():
    source_load_MLRE = np.zeros((1, 1, 4, 4), dtype=np.int64)
    source_load_MLRE[0, 0, :2, :2] = source_load_MLRE[0, 0, 2:, 2:] = 20
    load = StepLoad.of_sources(source_load_MLRE)
    cells = cells_of(at_home(load.load_MLE, HOME_LE), load, TRAINING)
    assert cells.dispatch_ML.item() == 40 / 2 * 400 / 400


@pytest.mark.parametrize(("to_rank", "bytes_per_us"), [(1, 400), (2, 40)])
def test_replicas_travel_over_the_link_between_their_ranks(to_rank, bytes_per_us):
    index_X4 = np.array([[0, 0, 0, 0], [0, 0, 0, to_rank], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]])
    assignment = from_pieces(index_X4, np.array([20, 20, 40, 40, 40]), HOME_LE, 1)
    assert cells_of(assignment, EVEN, TRAINING).fetch_ML.item() == 6000 / bytes_per_us


def test_a_home_sends_its_replicas_one_after_the_other():
    index_X4 = np.array(
        [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]]
    )
    assignment = from_pieces(index_X4, np.array([10, 10, 10, 10, 40, 40, 40]), HOME_LE, 1)
    one_node = replace(TRAINING, cluster=Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1))
    assert cells_of(assignment, EVEN, one_node).fetch_ML.item() == 3 * 6000 / 400


@pytest.mark.parametrize("once", [False, True])
def test_an_even_load_costs_what_balance_costs(once):
    training = replace(TRAINING, sends_once_per_node=once)
    even, ideal = cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, training), balanced_cells(EVEN, training)
    for part in ("attention_ML", "experts_ML", "dispatch_ML", "fetch_ML"):
        np.testing.assert_allclose(getattr(even, part), getattr(ideal, part))
