from dataclasses import replace

import pytest

from harness.small_training import TRAINING
from relibra.evaluation.dispatcher import Dispatcher
from relibra.evaluation.hardware import HARDWARE
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.training import Training
from relibra.planning import Cluster, CostModel

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=8, redundant_slots=2)


def _of(dispatcher=Dispatcher.ALLTOALL, hardware=HARDWARE["h100"]):
    return Training.of(MODELS["deepseek-v3"], hardware, _CLUSTER, dispatcher)


def test_an_expert_reads_its_weights_and_computes_its_tokens():
    cost = _of().planning_cost
    assert cost.compute_us(1) == pytest.approx(88.08e6 / (0.8 * 3.35e6), rel=0.01)  # bytes over bytes per us
    assert cost.us_per_token == pytest.approx(88.08e6 / (0.4 * 989e6), rel=0.01)  # 2 FLOP a parameter of 2 bytes
    assert cost.token_size_bytes == 2 * 2 * 7168


def test_planning_is_told_what_one_more_copy_adds_to_the_network():
    copy_size_bytes = TRAINING.planning_cost.token_size_bytes
    assert copy_size_bytes == TRAINING.model.token_size_bytes
    once = replace(TRAINING, dispatcher=Dispatcher.DEEPEP).planning_cost.token_size_bytes
    # A node misses (1 - p)(1 - p / 0.75) of the tokens. At p = 1/2 one more token adds 1/3 + 1/2 / 0.75 = 1 message,
    # so one more of its two copies adds half a message.
    assert once == pytest.approx(copy_size_bytes / 2, rel=1e-3)


@pytest.mark.parametrize("dispatcher", Dispatcher)
def test_planning_is_told_which_adapters_copies_enter(dispatcher):
    assert _of(dispatcher).planning_cost.sends_once_per_node == dispatcher.sends_once_per_node


def test_planning_is_told_the_rate_of_the_dispatcher():
    assert _of(Dispatcher.ALLTOALL).planning_cost.inter_node_bytes_per_us == pytest.approx(0.60 * 50e3)
    assert _of(Dispatcher.DEEPEP).planning_cost.inter_node_bytes_per_us == pytest.approx(0.87 * 50e3)


def test_measured_times_replace_computed_ones_and_a_token_keeps_its_size():
    hardware = replace(HARDWARE["h100"], measured=CostModel(expert_us=(1.0, 2.0)))
    training = _of(hardware=hardware)
    assert training.planning_cost.expert_us == (1.0, 2.0)
    assert training.token_size_bytes == 2 * 2 * 7168  # the file says nothing of it
