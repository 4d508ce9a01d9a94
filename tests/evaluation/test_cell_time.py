from dataclasses import replace

import numpy as np
import pytest

from harness.small_training import EVEN, HOME_LE, TRAINING
from relibra.evaluation.assignment import at_home, from_pieces
from relibra.evaluation.cell_time import balanced_cells, cells_of
from relibra.planning import Cluster, StepLoad


def test_experts_wait_for_the_slowest_rank():
    load = StepLoad.of_sources(np.array([[[[10, 10, 10, 70]]]]).repeat(4, axis=2))
    cells = cells_of(at_home(load.load_MLE, HOME_LE), load, TRAINING)
    assert cells.experts_ML.item() == 10 + 280


def test_transfers_hide_behind_the_layer_and_not_behind_the_output_head():
    training = replace(TRAINING, model=replace(TRAINING.model, vocabulary_size=1000))
    plain, headed = (cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, each) for each in (TRAINING, training))
    assert headed.attention_ML == plain.attention_ML
    assert (headed.other_ML - plain.other_ML).item() == pytest.approx(20 * 2 * 100 * 1000 / 6000)


def test_planning_is_told_what_one_more_copy_adds_to_the_network():
    copy_size_bytes = TRAINING.planning_cost.token_size_bytes
    assert copy_size_bytes == TRAINING.model.token_size_bytes
    once = replace(TRAINING, sends_once_per_node=True).planning_cost.token_size_bytes
    # A node misses (1 - p)(1 - p / 0.75) of the tokens. At p = 1/2 one more token adds 1/3 + 1/2 / 0.75 = 1 message,
    # so one more of its two copies adds half a message.
    assert once == pytest.approx(copy_size_bytes / 2, rel=1e-3)


@pytest.mark.parametrize(("to_rank", "inside_us", "across_us"), [(1, 6000 / 400, 0), (2, 0, 6000 / 40)])
def test_replicas_travel_over_the_link_between_their_ranks(to_rank, inside_us, across_us):
    index_X4 = np.array([[0, 0, 0, 0], [0, 0, 0, to_rank], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]])
    assignment = from_pieces(index_X4, np.array([20, 20, 40, 40, 40]), HOME_LE, 1)
    cells = cells_of(assignment, EVEN, TRAINING)
    assert (cells.fetch_inside_ML.item(), cells.fetch_across_ML.item()) == (inside_us, across_us)


def test_a_home_sends_its_replicas_one_after_the_other():
    index_X4 = np.array(
        [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 0, 3], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]]
    )
    assignment = from_pieces(index_X4, np.array([10, 10, 10, 10, 40, 40, 40]), HOME_LE, 1)
    one_node = replace(TRAINING, cluster=Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=1))
    assert cells_of(assignment, EVEN, one_node).fetch_inside_ML.item() == 3 * 6000 / 400


@pytest.mark.parametrize("once", [False, True])
def test_an_even_load_costs_what_balance_costs(once):
    training = replace(TRAINING, sends_once_per_node=once)
    even, ideal = cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, training), balanced_cells(EVEN, training)
    for part in ("attention_ML", "experts_ML", "dispatch_ML", "fetch_inside_ML", "fetch_across_ML"):
        np.testing.assert_allclose(getattr(even, part), getattr(ideal, part))
