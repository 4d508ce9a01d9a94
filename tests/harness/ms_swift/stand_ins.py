"""What ms-swift and mcore-bridge need of a machine with GPUs, beyond `bridge_on_cpu`, stood in for on the CPU.

- Transformer Engine's layers are those of megatron-core, with the names of weights that mcore-bridge reads:
  `linear_qkv` brings the norm before it along, and grouped experts are `harness.distributed.grouped`.
- vLLM is `harness.ms_swift.rollout`, which makes up responses and keeps the weights that it is sent.
- Plots and statistics are imported and not used.

All else is ms-swift's and mcore-bridge's own code.
"""

from typing import Any

import torch
from torch import Tensor

from harness import bridge_on_cpu


def install() -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install` and before anything imports ms-swift."""
    bridge_on_cpu.install("matplotlib", "nltk", "rouge", "scipy", "sentencepiece", "tensorboard", "tiktoken")
    torch.cuda.device_count = lambda: 1
    torch.jit.script = lambda function, *_, **__: function  # it compiles no function that calls a shim
    to, empty = torch.Tensor.to, torch.empty
    torch.Tensor.to = lambda self, *args, **options: to(self, *map(_on_cpu, args), **options)
    torch.empty = lambda *sizes, pin_memory=False, **options: empty(*sizes, **options)
    _transformer_engine()
    _layers()
    from swift.megatron.trainers import base

    from harness.ms_swift import rollout

    base.warmup_jit_function = lambda *_: None  # runs fused functions on the GPU once
    rollout.install()


def _on_cpu(argument: Any) -> Any:
    return "cpu" if isinstance(argument, str | torch.device) and str(argument).startswith("cuda") else argument


def _transformer_engine() -> None:
    from megatron.core.extensions import transformer_engine

    from harness.distributed.grouped import GroupedLinear

    missing = type("Missing", (torch.nn.Module,), {})
    for name in (
        "TEColumnParallelGroupedLinear",
        "TEColumnParallelLinear",
        "TEFusedMLP",
        "TELayerNormColumnParallelLinear",
        "TELinear",
        "TENorm",
        "TERowParallelGroupedLinear",
        "TERowParallelLinear",
        "SplitAlongDim",
        "te_checkpoint",
        "set_save_original_input",
    ):
        if getattr(transformer_engine, name, None) is None:
            setattr(transformer_engine, name, type(name, (missing,), {}))
    # mcore-bridge changes how this class saves its state. Layers are made of `GroupedLinear` itself.
    transformer_engine.TEGroupedLinear = type("TEGroupedLinear", (GroupedLinear,), {})


def _layers() -> None:
    with bridge_on_cpu.defining_kernels():
        from mcore_bridge.model import register
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear
    from megatron.core.transformer.identity_op import IdentityOp

    from harness.distributed.grouped import use_grouped_experts

    class NormAndLinear(ColumnParallelLinear):  # type: ignore[misc]
        """Transformer Engine's `LayerNormLinear`."""

        def __init__(self, input_size: int, *args: Any, config: Any, **options: Any) -> None:
            super().__init__(input_size, *args, config=config, **options)
            self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
            self.layer_norm_weight.sequence_parallel = config.sequence_parallel

        def forward(self, inputs: Tensor, *args: Any, **options: Any) -> Any:
            size, epsilon = self.layer_norm_weight.shape, self.config.layernorm_epsilon
            normed = torch.nn.functional.rms_norm(inputs, size, self.layer_norm_weight, epsilon)
            return super().forward(normed, *args, **options)

    def spec(config: Any, use_transformer_engine: bool, **options: Any) -> Any:
        block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, **options)
        for layer in block.layer_specs:
            layer.submodules.input_layernorm = IdentityOp
            layer.submodules.self_attention.submodules.linear_qkv = NormAndLinear
            use_grouped_experts(layer)
        return block

    register.get_gpt_decoder_block_spec = spec
