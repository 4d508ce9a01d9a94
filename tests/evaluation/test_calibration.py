import json
from dataclasses import replace

import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.calibration import Measurement, calibrate, read_cost, read_measurements
from relibra.evaluation.model_presets import MODELS
from relibra.planning import Cluster, PlanParams, StepLoad
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.traffic import Traffic

_MEASURED = Measurement(
    device="a GPU",
    preset="a model",
    weight_size_bytes=1000,
    hidden_size=2048,
    expert_tokens=(1, 64, 128, 1024),
    expert_us=(10.0, 9.5, 12.0, 96.0),
)


def test_times_never_fall_and_begin_at_no_tokens():
    cost = calibrate(_MEASURED, {})
    assert cost.expert_tokens == (0, 64, 128, 1024)
    assert cost.expert_us == (10, 10, 12, 96)
    assert cost.token_size_bytes == 8192


def test_values_that_one_device_cannot_measure_are_given_or_default():
    assert calibrate(_MEASURED, {}).intra_node_bytes_per_us == 360e3
    assert calibrate(_MEASURED, {"intra_node_bytes_per_us": 150e3}).intra_node_bytes_per_us == 150e3


def test_copies_that_travel_together_are_counted_once_by_the_planner_and_not_by_the_file():
    """The file of a job with DeepEP has whole tokens, for `advise --cost`; the planner knows nodes and top-k."""
    every, once = (calibrate(_MEASURED, {}, dispatcher) for dispatcher in (Dispatcher.ALLTOALL, Dispatcher.DEEPEP))
    assert every.token_size_bytes == once.token_size_bytes == 8192
    model, cluster = MODELS["deepseek-v3"].model(), Cluster(num_nodes=4, gpus_per_node=8, redundant_slots=2)
    load = StepLoad.of_sources(np.ones((1, model.num_layers, 32, model.num_experts), dtype=np.int64))
    prices = [
        Traffic.of(load, cluster, PlanParams(cost=cost).counting_copies(model, cluster)).price for cost in (every, once)
    ]
    drawn = 1 - np.arange(8) / 256  # a node misses a token's experts one after the other
    added = np.prod(1 - 0.25 / drawn) * (1 / (drawn - 0.25)).sum() / 8
    assert prices[1] == pytest.approx(added * prices[0], rel=1e-2)
    assert prices[1] < prices[0] / 4


def test_one_point_is_not_enough():
    with pytest.raises(InvalidInput, match="times of at least two numbers of tokens, got 1"):
        calibrate(replace(_MEASURED, expert_tokens=(1,), expert_us=(1.0,)), {})


def test_a_cost_model_survives_its_file(tmp_path):
    cost = calibrate(_MEASURED, {"hidden_transfer_share": 0.5})
    (tmp_path / "cost.json").write_text(json.dumps(cost.to_dict()))
    assert read_cost(tmp_path / "cost.json") == cost


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"machine": {"device": "x"}, "experts": [{"preset": "m"}]}'])
def test_files_of_another_kind_are_refused_by_name(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="expected a report of `make gpu-check`"):
        read_measurements(path)
