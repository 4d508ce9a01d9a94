"""What NeMo-RL needs of a machine with GPUs and of its services, stood in for on the CPU.

Packages that are imported and not used have empty modules, and `MegatronPolicyWorkerImpl.__init__` is stood in for by
`workers.build`. On the CPU, offloads move parameters and gradients as on a GPU, and optimizer state is copied where
they move it. Everything else is NeMo-RL's, Megatron-Bridge's and megatron-core's own code.
"""

import sys
import typing
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
import typing_extensions

from harness import bridge_on_cpu

_UNUSED = (
    "fastapi",
    "matplotlib",
    "mlflow",
    "nvtx",
    "prometheus_client",
    "pydantic",
    "pynvml",
    "swanlab",
    "tensorboard",
    "torch_memory_saver",
    "torchvision",
    "uvicorn",
    "wandb",
    "zmq",
)
_OF_UNUSED_PARTS = ("megatron.core.ssm.ops.batch_invariant_decode", "megatron.rl", "torch.utils.tensorboard")


def install() -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install` and before anything imports NeMo-RL."""
    missing = (name for name in _UNUSED if find_spec(name) is None)
    bridge_on_cpu.install(*_OF_UNUSED_PARTS, *missing)
    if sys.version_info < (3, 12):  # NeMo-RL asks for Python 3.13, and pydantic takes no TypedDict of an older one
        typing.TypedDict = typing_extensions.TypedDict
    torch.cuda.get_device_name = lambda *_: "cpu"
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 20)  # for small buffers of a refit
    plain_to = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return plain_to(self, *("cpu" if each == "cuda" else each for each in args), **kwargs)

    torch.Tensor.to = to
    torch.Tensor.pin_memory = lambda self, *_, **__: self.clone()
    from nemo_rl.models.policy.workers.megatron_policy_worker import MegatronPolicyWorkerImpl

    MegatronPolicyWorkerImpl.move_optimizer = bridge_on_cpu.leaving_nothing(MegatronPolicyWorkerImpl.move_optimizer)
