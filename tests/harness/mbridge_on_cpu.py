"""What mbridge, and mcore-bridge alike, needs of a machine with GPUs, stood in for on the CPU.

They build models of Transformer Engine's layers, and know parameters by the names that they have there: experts are
grouped products, and the norm before attention is a part of the product that follows. The layers here are megatron's
own, and parameters have these names.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.identity_op import IdentityOp

from harness.distributed.grouped import use_grouped_experts


class NormedColumnParallelLinear(ColumnParallelLinear):
    """A product with the norm of its input inside."""

    def __init__(self, input_size: int, *args: Any, config: Any, **options: Any) -> None:
        super().__init__(input_size, *args, config=config, **options)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
        self.layer_norm_weight.sequence_parallel = config.sequence_parallel

    def forward(self, tokens: torch.Tensor, *args: Any, **options: Any) -> Any:
        """Return the product of the normed tokens."""
        normed = torch.nn.functional.rms_norm(
            tokens, self.layer_norm_weight.shape, self.layer_norm_weight, self.config.layernorm_epsilon
        )
        return super().forward(normed, *args, **options)


def install() -> None:
    """Let mbridge build its models of these layers. Call it after `megatron_on_cpu.install`."""
    from mbridge.core import llm_bridge, util

    llm_bridge.get_gpt_decoder_block_spec = block_spec
    # mbridge 0.15.1 asks whether a model is of a kind that megatron-core 0.19 does not have any more.
    util.ModelType = SimpleNamespace(encoder_and_decoder=None)


def block_spec(config: Any, use_transformer_engine: bool, **options: Any) -> Any:
    """Return megatron's own layers, as `get_gpt_decoder_block_spec` does, with these names."""
    own = {"normalization": config.normalization} | options
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, **own)
    for each in spec.layer_specs:
        each.submodules.input_layernorm = IdentityOp
        each.submodules.self_attention.submodules.linear_qkv = NormedColumnParallelLinear
        use_grouped_experts(each)
    return spec


def use_on_cpu(bridge: Any, off: Mapping[str, bool]) -> Any:
    """Turn off what needs a GPU in the models that a bridge builds; return the bridge."""
    bridge.hf_config.rope_theta = bridge.hf_config.rope_parameters["rope_theta"]  # there before transformers 5
    bridge.set_extra_args(**off, use_cpu_initialization=True)
    return bridge
