from dataclasses import fields, replace

import numpy as np
import pytest

from harness.small_training import EVEN, HOME_LE, TRAINING
from relibra.evaluation import cell_time
from relibra.evaluation.assignment import Known, at_home, from_pieces
from relibra.evaluation.step_time import balanced_step_time, step_time
from relibra.evaluation.work import work_of
from relibra.planning import Cluster, CostModel, StepLoad
from relibra.planning.carriage import WAVE_US
from relibra.planning.machines.host_work import RELIBRA, STAGES


def cells_of(assignment, load, training):
    return cell_time.cells_of(work_of(assignment, load, training.cluster), training)


def _with(training, **constants):
    return replace(training, constants=replace(training.constants, **constants))


def _replicated(known=Known.AHEAD, decision_us=0.0, to_rank=1):
    index_X4 = np.array([[0, 0, 0, 0], [0, 0, 0, to_rank], [0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]])
    return from_pieces(index_X4, np.array([20, 20, 40, 40, 40]), HOME_LE, 1, known, decision_us)


def test_a_step_is_a_recompute_and_an_update():
    assignment = at_home(EVEN.load_MLE, HOME_LE)
    cells, step = cells_of(assignment, EVEN, TRAINING), step_time(assignment, EVEN, TRAINING)
    assert step.experts_s == pytest.approx(4 * cells.experts_ML.sum() / 1e6)  # forward, forward, twice for backward
    assert step.dispatch_s == pytest.approx(3 * cells.dispatch_ML.sum() / 1e6)
    assert step.total_s == pytest.approx(sum(getattr(step, each.name) for each in fields(step)))


def _slow(share):
    """Training in which the weights of the one replica take this share of attention's time, and that time."""
    attention_us = cells_of(_replicated(), EVEN, TRAINING).attention_ML.item()
    rate = 6000 / (attention_us * share)
    return _with(TRAINING, weight_bytes_per_us=rate, gradient_bytes_per_us=rate / 4), attention_us


def test_transfers_known_ahead_hide_behind_attention_but_gradients_take_multiprocessors_from_it():
    slow, attention_us = _slow(0.1)
    assert step_time(_replicated(), EVEN, slow).transfer_s == pytest.approx(0.25 * 8 * 0.1 * attention_us / 1e6)


def test_a_step_waits_for_transfers_longer_than_attention():
    slow, attention_us = _slow(1.5)
    # Each of the two forward passes exposes half of attention's time. The backward pass exposes what weights and
    # gradients take beyond twice attention, and the gradients slow attention all along.
    expected = 2 * 0.5 + (1.5 + 8 * 1.5 - 2) + 0.25 * 2
    assert step_time(_replicated(), EVEN, slow).transfer_s == pytest.approx(expected * attention_us / 1e6)


def test_gradients_that_cross_nodes_take_twice_the_time_of_weights_and_no_multiprocessors():
    attention_us = cells_of(_replicated(), EVEN, TRAINING).attention_ML.item()
    network = _with(TRAINING, state_across_bytes_per_us=6000 / attention_us)
    step = step_time(_replicated(to_rank=2), EVEN, network)
    assert step.transfer_s == pytest.approx((1 + 2 - 2) * attention_us / 1e6)


def test_transfers_known_late_hide_behind_dispatch():
    slow, attention_us = _slow(0.5)
    ahead, late = (step_time(_replicated(known, 7.0), EVEN, slow) for known in Known)
    dispatch_us = cells_of(_replicated(), EVEN, slow).dispatch_ML.item() / 2
    shown_us = max(0.5 * attention_us - dispatch_us, 0)
    assert late.transfer_s - ahead.transfer_s == pytest.approx(2 * shown_us / 1e6)


def test_transfers_known_ahead_take_multiprocessors_in_every_pass():
    slow, attention_us = _slow(0.1)
    taken = _with(slow, weight_sm_share=0.5)
    more_s = step_time(_replicated(), EVEN, taken).transfer_s - step_time(_replicated(), EVEN, slow).transfer_s
    assert more_s == pytest.approx(3 * 0.5 * 0.1 * attention_us / 1e6)


def test_every_layer_waits_for_decisions_and_for_mapping_tokens_to_copies():
    assert step_time(_replicated(Known.ROUTED, 7.0), EVEN, TRAINING).decision_s == pytest.approx(2 * (7 + 37) / 1e6)
    assert step_time(at_home(EVEN.load_MLE, HOME_LE), EVEN, TRAINING).decision_s == 0


def test_what_hosts_do_for_replicas_costs_the_time_for_which_devices_wait():
    on_host, kernels_s = replace(_replicated(), maps_on_host=True), 2 * (37 + 20) / 1e6
    assert step_time(on_host, EVEN, TRAINING).decision_s == pytest.approx(kernels_s)
    slow, forward = _with(TRAINING, operation_us=1e6), sum(RELIBRA[stage].operations for stage in STAGES)
    waited_s = step_time(on_host, EVEN, slow).decision_s - kernels_s
    assert waited_s == pytest.approx(2 * forward + RELIBRA["backward"].operations, rel=1e-3)
    assert step_time(at_home(EVEN.load_MLE, HOME_LE), EVEN, slow).decision_s == 0


def test_a_measured_wait_for_hosts_takes_the_place_of_the_model():
    hardware = replace(TRAINING.hardware, measured=CostModel(host_us=200.0))
    on_host = replace(_replicated(), maps_on_host=True)
    step = step_time(on_host, EVEN, replace(_with(TRAINING, operation_us=1e6), hardware=hardware))
    assert step.decision_s == pytest.approx((3 * 200 + 2 * (37 + 20)) / 1e6)


def test_a_step_waits_for_experts_that_move():
    moved_LE = HOME_LE[:, [1, 0, 2, 3]]
    state = TRAINING.model.model().expert_state_size_bytes
    step = step_time(at_home(EVEN.load_MLE, moved_LE), EVEN, TRAINING, HOME_LE)
    assert step.reorder_s == pytest.approx((state / 400 + WAVE_US) / 1e6)
    assert step.first_placement_s == 0  # the step before had the homes of plain expert parallelism
    far_LE = HOME_LE[:, [2, 1, 0, 3]]
    far = step_time(at_home(EVEN.load_MLE, far_LE), EVEN, TRAINING, HOME_LE)
    assert far.reorder_s == pytest.approx((state / 40 + WAVE_US) / 1e6)


def test_all_steps_share_the_first_placement():
    moved_LE, state = HOME_LE[:, [1, 0, 2, 3]], TRAINING.model.model().expert_state_size_bytes
    step = step_time(at_home(EVEN.load_MLE, moved_LE), EVEN, replace(TRAINING, num_steps=20), moved_LE)
    assert step.reorder_s == 0
    assert step.first_placement_s == pytest.approx((state / 400 + WAVE_US) / 1e6 / 20)


def test_groups_wait_for_the_slower_one():
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)
    load = StepLoad.of_sources(np.concatenate([np.full((1, 1, 4, 4), 10), np.full((1, 1, 4, 4), 30)]))
    training = replace(TRAINING, cluster=cluster)
    alone = StepLoad.of_sources(np.full((1, 1, 4, 4), 30))
    assert balanced_step_time(load, training).total_s == pytest.approx(balanced_step_time(alone, TRAINING).total_s)


def test_homes_that_no_swaps_bring_about_move_in_one_wave():
    crowded_LE = np.array([[0, 0, 2, 3]], dtype=np.int32)  # EPLB counts first copies as homes
    assignment = at_home(EVEN.load_MLE, crowded_LE)
    step = step_time(assignment, EVEN, TRAINING, HOME_LE)
    swapped = step_time(at_home(EVEN.load_MLE, HOME_LE[:, [1, 0, 2, 3]]), EVEN, TRAINING, HOME_LE)
    assert step.reorder_s == pytest.approx(swapped.reorder_s)  # one expert over the same link
