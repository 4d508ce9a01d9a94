import json
from functools import partial

import pytest

from harness.command_line import relibra
from relibra.errors import InvalidInput
from relibra.evaluation.calibration import read_cost

_run = partial(relibra, "calibrate")


@pytest.fixture
def report(tmp_path):
    def expert(preset, hidden_size):
        return {
            "preset": preset,
            "hidden_size": hidden_size,
            "weight_size_bytes": 9_437_184,
            "expert_tokens": [1, 1024, 8192],
            "expert_us": [5.0, 30.0, 210.0],
        }

    path = tmp_path / "gpu-some-device.json"
    experts = [expert("qwen3-30b-a3b", 2048), expert("glm-4.5-air", 4096)]
    path.write_text(json.dumps({"machine": {"device": "some device"}, "experts": experts}))
    return path


def test_measured_times_become_a_cost_model_shown_with_the_default(report, tmp_path):
    output = tmp_path / "cost.json"
    printed = _run(report, "--model", "glm-4.5-air", "-o", output, "--network-gb-per-s", 20)
    cost = read_cost(output)
    assert cost.us_per_token == pytest.approx(180 / 7168)
    assert cost.token_size_bytes == 4 * 4096
    assert cost.inter_node_bytes_per_us == 20e3
    assert not cost.sends_once_per_node
    for text in ("some device", "measured", "default", "fewest tokens for a replica"):
        assert text in printed


def test_a_cost_model_knows_the_dispatcher(report, tmp_path):
    output = tmp_path / "cost.json"
    _run(report, "--model", "glm-4.5-air", "-o", output, "--dispatcher", "deepep")
    cost = read_cost(output)
    assert cost.sends_once_per_node
    assert cost.token_size_bytes == 4 * 4096


def test_the_model_must_be_one_that_was_measured(report, tmp_path):
    for args in ((), ("--model", "kimi-k2")):
        with pytest.raises(InvalidInput, match=r"--model: expected one of the measured qwen3-30b-a3b, glm-4.5-air"):
            _run(report, "-o", tmp_path / "cost.json", *args)
