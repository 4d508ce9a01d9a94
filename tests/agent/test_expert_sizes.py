"""The sizes of an expert, from its parameters."""

import torch
from torch import nn

from relibra.agent.expert_sizes import ExpertSizes
from relibra.agent.homes.state_readers import adam_bytes
from relibra.planning import Model

MODEL = Model(num_layers=2, num_experts=4, top_k=1)


def expert(dtype: torch.dtype, *, is_trained: bool = True) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(10, 10, dtype=dtype), requires_grad=is_trained)]


def test_adam_keeps_12_bytes_for_a_bf16_parameter_and_8_for_an_fp32_one() -> None:
    assert ExpertSizes.of([expert(torch.bfloat16)], adam_bytes) == ExpertSizes(weight_bytes=200, state_bytes=1400)
    assert ExpertSizes.of([expert(torch.float32)], adam_bytes).state_bytes == 1200
    assert ExpertSizes.of([expert(torch.bfloat16)], lambda _: 0).state_bytes == 200


def test_frozen_parameters_have_no_state() -> None:
    adapted = [*expert(torch.bfloat16, is_trained=False), *expert(torch.bfloat16)]
    assert ExpertSizes.of([adapted], adam_bytes) == ExpertSizes(weight_bytes=400, state_bytes=1600)


def test_S9_sizes_that_were_not_registered_are_filled_in_and_named() -> None:
    filled, advice = ExpertSizes(weight_bytes=200, state_bytes=1400).fill(MODEL)
    assert (filled.expert_weight_size_bytes, filled.expert_state_size_bytes) == (200, 1400)
    assert advice is not None
    assert "register Model(expert_weight_size_bytes=200, expert_state_size_bytes=1400)" in advice
    assert ExpertSizes(weight_bytes=200, state_bytes=1400).fill(filled) == (filled, None)


def test_S9_another_size_than_the_registered_one_is_named() -> None:
    registered, _ = ExpertSizes(weight_bytes=200, state_bytes=1400).fill(MODEL)
    model, advice = ExpertSizes(weight_bytes=400, state_bytes=2800).fill(registered)
    assert model == registered
    assert advice is not None
    assert "expert_weight_size_bytes=200, but an expert of this model has 400" in advice


def test_a_stage_without_experts_says_nothing() -> None:
    assert ExpertSizes.of([], adam_bytes).fill(MODEL) == (MODEL, None)
