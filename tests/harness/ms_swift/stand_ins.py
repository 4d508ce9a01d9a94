"""What ms-swift and mcore-bridge need of a machine with GPUs, beyond `bridge_on_cpu`, stood in for on the CPU.

- Transformer Engine's layers are those of megatron-core, under the names that mcore-bridge reads (`mbridge_on_cpu`).
- vLLM is `harness.ms_swift.rollout`, which makes up responses and keeps the weights that it is sent.
- Plots and statistics are imported and not used.

All else is ms-swift's and mcore-bridge's own code.
"""

from typing import Any

import torch

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
    from harness import mbridge_on_cpu

    with bridge_on_cpu.defining_kernels():
        from mcore_bridge.model import register
    register.get_gpt_decoder_block_spec = mbridge_on_cpu.block_spec
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
