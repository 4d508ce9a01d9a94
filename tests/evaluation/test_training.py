from dataclasses import replace

import numpy as np
import pytest

from harness.small_training import TRAINING
from relibra.evaluation.dispatch_time import share_of_tokens
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.training import Training
from relibra.planning import Cluster, CostModel, PlanParams
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=8, redundant_slots=2)


def _of(dispatcher=Dispatcher.ALLTOALL, hardware=HARDWARE["h100"]):
    return Training.of(MODELS["deepseek-v3"], hardware, _CLUSTER, dispatcher)


def test_an_expert_reads_its_weights_and_computes_its_tokens():
    cost = _of().planning_cost
    assert cost.compute_us(1) == pytest.approx(88.08e6 / (0.8 * 3.35e6), rel=0.01)  # bytes over bytes per us
    assert cost.us_per_token == pytest.approx(88.08e6 / (0.4 * 989e6), rel=0.01)  # 2 FLOP a parameter of 2 bytes
    assert cost.token_size_bytes == 2 * 2 * 7168


def test_planning_counts_what_one_more_copy_adds_as_the_simulation_does():
    training = replace(TRAINING, model=MODELS["deepseek-v3"], cluster=_CLUSTER, dispatcher=Dispatcher.DEEPEP)
    params = PlanParams(cost=training.planning_cost).counting_copies(training.model.model(), _CLUSTER)
    even, more = 0.5, 1e-6
    added = np.diff(share_of_tokens(np.array([even - more, even]), training.model)).item() / more
    assert params.cost.token_size_bytes == pytest.approx(training.token_size_bytes * added / 8, rel=1e-4)


def test_the_size_of_a_token_is_that_of_a_measured_file_or_of_bf16():
    assert _of().token_size_bytes == 4 * 7168
    assert _of(hardware=replace(HARDWARE["h100"], measured=CostModel(token_size_bytes=500.0))).token_size_bytes == 500


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
