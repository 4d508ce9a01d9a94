"""What AReaL's Megatron engine needs of a machine with GPUs, beyond `bridge_on_cpu`, stood in for on the CPU.

- The engine names its device by number, which is a GPU for torch, so it sees `torch.device` as the CPU.
- Trackers of experiments are imported and not used.
- Triton is imported for kernels of fp8, which are not used. torch brings it with its build for CUDA only.
- Process groups exist before the engine asks for them, because two engines share them here.
- Megatron-Bridge and mbridge get layers of megatron-core that need no Transformer Engine, and mbridge trains in fp32.

All else is AReaL's own code.
"""

from types import ModuleType
from typing import Any

import torch

from harness import bridge_on_cpu
from harness.tiny_qwen3_moe import OFF_ON_CPU


def install() -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install` and before anything imports AReaL."""
    bridge_on_cpu.install("swanlab", "trackio", "tensorboardX", "wandb")
    import megatron.bridge  # noqa: F401  (first, because it would take the stand-in for Triton)

    with bridge_on_cpu.defining_kernels():
        import areal.engine.megatron_utils.fp8.kernels  # noqa: F401
    from areal.engine import megatron_engine

    megatron_engine.torch = _TorchOnCpu("torch")
    bridge_on_cpu.use_local_layers(megatron_engine.MegatronBridgeAutoBridge)
    _mbridge(megatron_engine.mbridge.AutoBridge)


class _TorchOnCpu(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: object) -> torch.device:
        return torch.device("cpu")


def _mbridge(bridge: Any) -> None:
    from harness import mbridge_on_cpu

    mbridge_on_cpu.install()
    own = bridge.from_pretrained

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        built = own(*args, **kwargs, dtype=torch.float32)
        return mbridge_on_cpu.use_on_cpu(built, dict.fromkeys(OFF_ON_CPU, False))

    bridge.from_pretrained = from_pretrained
