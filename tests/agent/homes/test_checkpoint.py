"""Remainders of main weights in checkpoints. tests/distributed writes and loads whole checkpoints."""

import pytest
import torch

from relibra.agent.homes.checkpoint import loading_remainders
from relibra.errors import InvalidInput

WEIGHT = torch.zeros(3, dtype=torch.bfloat16)


def loaded(parameter, main):
    seen = {}
    loading_remainders(lambda _, tensors: seen.update(tensors))(parameter, {"param": main, "exp_avg": torch.ones(3)})
    return seen


def test_remainders_that_were_stored_as_fp32_become_int16_again():
    remainders = torch.tensor([-32768, 7, 32767], dtype=torch.int16)
    seen = loaded(WEIGHT, remainders.float())
    assert seen["param"].dtype == torch.int16
    assert torch.equal(seen["param"], remainders)
    assert seen["exp_avg"].dtype == torch.float32


def test_S9_whole_main_weights_are_refused_by_name():
    with pytest.raises(InvalidInput, match="store_param_remainders"):
        loaded(WEIGHT, torch.tensor([0.5, 1.0, -2.0]))


def test_fp32_parameters_have_no_remainders():
    main = torch.tensor([0.5, 1.0, -2.0])
    assert torch.equal(loaded(WEIGHT.float(), main)["param"], main)
