"""What verl needs of a machine with GPUs, beyond `bridge_on_cpu`, stood in for. All else is verl's own code.

Offloads move nothing on the CPU, so optimizer state is copied where they move it.
"""

import contextlib
import importlib.util
from typing import Any

import torch

from harness import bridge_on_cpu


def install() -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install` and before anything imports verl."""
    bridge_on_cpu.install()
    install_platform()
    _router_replay()
    _offload()
    _padding()
    from harness import mbridge_on_cpu

    mbridge_on_cpu.install()


def _padding() -> None:
    """Have verl before 0.9.1 pad as on machines without flash-attn, where it takes transformers' functions."""
    from verl.utils import attention_utils

    if not hasattr(attention_utils, "_fallback_unpad_input"):
        from verl.utils import npu_flash_attn_utils as own

        functions = own.index_first_axis, own.pad_input, own.rearrange, own.unpad_input
        attention_utils._get_attention_functions = lambda: functions


def install_in_worker() -> None:
    """Stand in for what is missing in a process that Ray has started, and import no engine of verl, as in a job."""
    bridge_on_cpu.install()
    install_platform()
    _router_replay()
    _process_groups()
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda *_: "CPU"
    torch.cuda.reset_peak_memory_stats = lambda *_: None
    torch.Tensor.pin_memory = lambda self: self
    from megatron.bridge import AutoBridge

    bridge_on_cpu.use_local_layers(AutoBridge)


def install_platform() -> None:
    """Have verl take the CPU for a device, and import no server that is missing. A job's driver needs nothing else."""
    missing = [name for name in ("uvicorn", "fastapi") if importlib.util.find_spec(name) is None]
    bridge_on_cpu.import_stand_ins(*missing)
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import set_platform

    body: dict[str, Any] = {name: lambda self, *_, **__: None for name in PlatformBase.__abstractmethods__}
    body |= {
        "device_name": property(lambda self: "cpu"),
        "vendor_name": property(lambda self: "cpu"),
        "device_module": property(lambda self: torch.cuda),
        "is_available": lambda self: True,
        "current_device": lambda self: torch.device("cpu"),
        "device_count": lambda self: 1,
        "communication_backend_name": lambda self: "gloo",
        "get_device_capability": lambda self, index=0: (9, 0),
        "nvtx_range": lambda self, message: contextlib.nullcontext(),
        "is_ipc_supported": lambda self: False,
        "visible_devices_envvar": lambda self: "CUDA_VISIBLE_DEVICES",
        "ray_resource_name": lambda self: "GPU",
        "ray_noset_envvars": lambda self: [],
    }
    set_platform(type("CpuPlatform", (PlatformBase,), body)())


def _router_replay() -> None:
    import verl.utils.megatron.router_replay_utils as router_replay_utils

    router_replay_utils.device_name = "cpu"


def _process_groups() -> None:
    """Let verl ask for one backend for the host and one for the device, and for means of losses, which gloo lacks."""
    import torch.distributed as dist

    join, reduce = dist.init_process_group, dist.all_reduce

    def init_process_group(backend: str, *args: Any, **options: Any) -> None:
        assert backend in ("cpu:gloo,cpu:gloo", "cpu:gloo"), backend
        join("gloo", *args, **options)

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, **options: Any) -> Any:
        if op != dist.ReduceOp.AVG:
            return reduce(tensor, op, group, **options)
        reduce(tensor, dist.ReduceOp.SUM, group)
        return tensor.div_(dist.get_world_size(group))

    dist.init_process_group, dist.all_reduce = init_process_group, all_reduce


def _offload() -> None:
    """Let verl's offload leave nothing where it was, as on a GPU.

    Parameters and gradients lose their memory on the CPU too. There is no pinned memory without a GPU. Optimizer state
    gets new tensors, and the old ones hold no numbers any more.
    """
    from verl.workers.engine.megatron import transformer_impl

    empty = torch.empty
    torch.empty = lambda *sizes, pin_memory=False, **options: empty(*sizes, **options)
    torch.Tensor.pin_memory = lambda self: self
    for name in ("load_megatron_optimizer", "offload_megatron_optimizer"):
        setattr(transformer_impl, name, bridge_on_cpu.leaving_nothing(getattr(transformer_impl, name)))
