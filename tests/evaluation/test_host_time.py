from dataclasses import replace

import numpy as np
import pytest

from relibra.evaluation.cell_time import cells_of
from relibra.evaluation.host_time import waiting_us_ML
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.training import Training
from relibra.evaluation.work import even_work
from relibra.planning import Cluster, StepLoad
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE
from relibra.planning.machines.host_work import MEGATRON, RELIBRA, mean_us

_CLUSTER = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)


def _waiting_us(tokens, dispatcher=Dispatcher.ALLTOALL, *, added=True, **fields):
    """For how long devices wait in a pass over a cell, as a mean over the passes of a step."""
    training = replace(Training.of(MODELS["qwen3-30b-a3b"], HARDWARE["h100"], _CLUSTER, dispatcher), **fields)
    model = training.model.model()
    load = StepLoad.of_sources(np.full((1, 1, 8, model.num_experts), tokens * model.top_k // model.num_experts))
    cells = cells_of(even_work(load, model.num_experts, _CLUSTER), training)
    shape = cells.attention_ML.shape
    found = waiting_us_ML(cells, training, np.full(shape, added), np.full(shape, 57.0 * added))
    return float(found.mean()) / 3


def _added_us(*args, **kwargs):
    return _waiting_us(*args, **kwargs) - _waiting_us(*args, added=False, **kwargs)


@pytest.mark.parametrize("dispatcher", list(Dispatcher))
def test_small_micro_batches_wait_for_all_that_hosts_do_and_large_ones_for_little(dispatcher):
    constants = Training.of(MODELS["qwen3-30b-a3b"], HARDWARE["h100"], _CLUSTER, dispatcher).constants
    all_us = mean_us(RELIBRA, constants)
    assert _added_us(256, dispatcher) > 0.8 * all_us
    assert _added_us(8192, dispatcher) < 0.35 * all_us
    falling = [_added_us(tokens, dispatcher) for tokens in (256, 512, 1024, 2048, 4096, 8192)]
    assert all(np.diff(falling) <= 1e-6)


def test_in_an_all_to_all_large_micro_batches_hide_it_whole_and_megatron_waits_for_a_launch():
    assert _added_us(8192) == pytest.approx(0, abs=1e-6)
    constants = Training.of(MODELS["qwen3-30b-a3b"], HARDWARE["h100"], _CLUSTER, Dispatcher.ALLTOALL).constants
    assert _waiting_us(8192) == pytest.approx(2 * MEGATRON["dispatch"].us(constants) / 3)
    assert _waiting_us(8192, shapes_known=True) == 0


def test_what_comes_between_the_tokens_of_deepep_and_its_experts_is_always_exposed():
    constants = Training.of(MODELS["qwen3-30b-a3b"], HARDWARE["h100"], _CLUSTER, Dispatcher.DEEPEP).constants
    assert _added_us(8192, Dispatcher.DEEPEP) == pytest.approx(2 * RELIBRA["experts"].us(constants) / 3)
