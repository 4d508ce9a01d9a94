import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.evaluation.hardware import HARDWARE, Hardware, hardware_of
from relibra.evaluation.model_presets import MODELS
from relibra.planning import CostModel


def test_an_expert_reads_its_weights_and_computes_its_tokens():
    model, hardware = MODELS["deepseek-v3"], HARDWARE["h100"]
    cost = hardware.cost_of(model)
    assert cost.compute_us(1) == pytest.approx(88.08e6 / (0.8 * 3.35e6), rel=0.01)  # bytes over bytes per us
    assert cost.us_per_token == pytest.approx(88.08e6 / (0.4 * 989e6), rel=0.01)  # 2 FLOP a parameter of 2 bytes
    assert cost.token_size_bytes == 2 * 2 * 7168


def test_vectorised_expert_times_equal_single_ones():
    cost = CostModel(expert_tokens=(0, 100, 1000), expert_us=(5, 10, 100))
    tokens_Q = np.array([0, 1, 50, 100, 500, 1000, 4000])
    np.testing.assert_allclose(Hardware.expert_us(cost, tokens_Q), [cost.compute_us(each) for each in tokens_Q])


def test_measured_times_replace_computed_ones():
    measured = CostModel(expert_us=(1.0, 2.0))
    assert (
        Hardware(
            name="mine",
            flop_per_us=1,
            hbm_bytes_per_us=1,
            intra_node_bytes_per_us=1,
            inter_node_bytes_per_us=1,
            source="here",
            measured=measured,
        ).cost_of(MODELS["kimi-k2"])
        == measured
    )


def test_unknown_hardware_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match="hardware: expected one of h100, h200, h800, a100, got tpu"):
        hardware_of("tpu")
