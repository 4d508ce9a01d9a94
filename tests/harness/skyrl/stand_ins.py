"""What SkyRL's worker needs of a machine with GPUs and of Ray, beyond `bridge_on_cpu`, stood in for on the CPU.

- Gloo instead of NCCL: ranks initialise their process group before the worker looks for one.
- The worker is built as a plain object and not as an actor of Ray. Several workers of one process share process groups.
- vLLM, if it is not installed, is imported for one base class. The engine that would send weights to it keeps them
  (`workers.KeptWeights`).
- The queue of asynchronous checkpoints has nothing to wait for, because all saves are synchronous.
- Megatron-Bridge 0.6.2 lacks two functions for adapters of experts, which do nothing else without adapters.
- There is no pinned memory, and no affinity of a GPU to memory.

All else is SkyRL's own code.
"""

import functools
import importlib.util
import sys
from collections import namedtuple
from types import ModuleType
from typing import Any

import torch

from harness import bridge_on_cpu
from harness.skyrl import imports


def install() -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install` and before anything imports SkyRL."""
    bridge_on_cpu.install()
    imports.typed_dicts()
    _modules("nvidia_resiliency_ext.checkpointing.async_ckpt.core").AsyncCallsQueue = _NoCalls
    _bridge()
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda device: None
    empty = torch.empty
    torch.empty = lambda *sizes, pin_memory=False, **options: empty(*sizes, **options)
    torch.Tensor.pin_memory = lambda self, *_, **__: self.clone()
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel = functools.cache(parallel_state.initialize_model_parallel)
    from skyrl.backends.skyrl_train.workers import worker

    worker.DistributedTorchRayActor._set_numa_affinity = lambda self, rank: None
    import skyrl.backends.skyrl_train.inference_servers.utils  # noqa: F401  (patches vLLM, if it is there)

    if importlib.util.find_spec("vllm") is None:
        _vllm()


def _bridge() -> None:
    from megatron.bridge.peft import utils
    from megatron.core.distributed import finalize_model_grads

    if not hasattr(utils, "enable_expert_parallel_grad_sync_in_finalize"):
        utils.enable_expert_parallel_grad_sync_in_finalize = lambda model: None
        utils.finalize_model_grads_with_expert_adapter_sync = finalize_model_grads


class _NoCalls:
    def __init__(self, *_: object, **__: object) -> None: ...
    def maybe_finalize_async_calls(self, *_: object, **__: object) -> None: ...
    def close(self) -> None: ...


def _vllm() -> None:
    base = _modules("vllm.distributed.weight_transfer.base")
    base.WeightSource = type("WeightSource", (), {})
    base.ParamMeta = namedtuple("ParamMeta", ["name", "dtype", "shape"])
    base.materialize_full_tensor = lambda tensor: tensor
    _modules("vllm.distributed.weight_transfer.packed_tensor").DEFAULT_PACKED_BUFFER_SIZE_BYTES = 1


def _modules(path: str) -> Any:
    """Put empty modules for the path into `sys.modules`, and return the last."""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        module = sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        module.__path__ = []
    return module
