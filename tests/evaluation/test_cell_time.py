from dataclasses import replace

import numpy as np
import pytest

from harness.small_training import EVEN, HOME_LE, TRAINING
from relibra.evaluation import cell_time
from relibra.evaluation.assignment import at_home, from_pieces
from relibra.evaluation.work import even_work, work_of
from relibra.planning import Cluster, StepLoad
from relibra.planning.machines.dispatcher import Dispatcher


def cells_of(assignment, load, training):
    return cell_time.cells_of(work_of(assignment, load, training.cluster), training)


def test_experts_wait_for_the_slowest_rank():
    load = StepLoad.of_sources(np.array([[[[10, 10, 10, 70]]]]).repeat(4, axis=2))
    cells = cells_of(at_home(load.load_MLE, HOME_LE), load, TRAINING)
    assert cells.experts_ML.item() == 10 + 280


def test_transfers_hide_behind_the_layer_and_not_behind_the_output_head():
    training = replace(TRAINING, model=replace(TRAINING.model, vocabulary_size=1000))
    plain, headed = (cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, each) for each in (TRAINING, training))
    assert headed.attention_ML == plain.attention_ML
    assert (headed.other_ML - plain.other_ML).item() == pytest.approx(20 * 2 * 100 * 1000 / 6000)


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


@pytest.mark.parametrize("dispatcher", list(Dispatcher))
def test_an_even_load_costs_what_balance_costs(dispatcher):
    training = replace(TRAINING, dispatcher=dispatcher)
    even = cells_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, training)
    ideal = cell_time.cells_of(even_work(EVEN, 4, training.cluster), training)
    for part in ("attention_ML", "experts_ML", "dispatch_ML", "fetch_inside_ML", "fetch_across_ML"):
        np.testing.assert_allclose(getattr(even, part), getattr(ideal, part))


def test_an_all_to_all_sends_more_than_deepep_at_the_same_rate():
    work = work_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, TRAINING.cluster)
    every, once = (
        cell_time.cells_of(work, replace(TRAINING, dispatcher=each)).dispatch_ML.item()
        for each in (Dispatcher.ALLTOALL, Dispatcher.DEEPEP)
    )
    assert every / once == pytest.approx(20 / (40 * (5 / 6) / 2))  # 5 in 6 tokens want the other node, 2 copies of each
