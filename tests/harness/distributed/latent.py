"""The projections of a latent MoE layer without Transformer Engine, which megatron requires for them.

`Projection` shares with megatron's `TELinear` (core 0.16.1, `extensions/transformer_engine.py`) what a MoE layer uses:
the arguments of its constructor with `parallel_mode="duplicated"`, and a forward that returns outputs and bias.
"""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from megatron.core.transformer.moe import moe_layer
from torch import Tensor, nn


class Projection(nn.Module):
    """A linear layer that every tensor-parallel rank holds whole."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        parallel_mode: str,
        config: Any,
        bias: bool,
        skip_bias_add: bool,
        skip_weight_param_allocation: bool,
        is_expert: bool,
        **_: Any,
    ) -> None:
        super().__init__()
        assert parallel_mode == "duplicated"
        assert not any((bias, skip_bias_add, skip_weight_param_allocation, is_expert))
        self.weight = nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))

    def forward(self, inputs: Tensor) -> tuple[Tensor, None]:
        return nn.functional.linear(inputs, self.weight), None


def latent_projections() -> AbstractContextManager[Any]:
    """Let megatron build MoE layers with latent projections in the body."""
    return mock.patch.multiple(moe_layer, HAVE_TE=True, TELinear=Projection, create=True)
