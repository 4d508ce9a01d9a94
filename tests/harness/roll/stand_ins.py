"""What ROLL needs of a machine with GPUs and of its services, stood in for on the CPU. All else is ROLL's own code.

Offloads allocate host memory, as on a GPU: parameters then have other memory than before. `Worker.__init__`, which
meets Ray's storage of keys, is stood in for by `workers.build`.
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace

import torch

from harness import bridge_on_cpu

_UNUSED = ("imageio", "more_itertools", "opentelemetry")

_OF_GPUS = (
    "clear_cublas_workspaces",
    "device_memory_used",
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
)
"""What ROLL calls of the device, and `torch.cpu` has not."""


def install() -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install` and before anything imports ROLL."""
    os.environ["ROLL_LOG_DIR"] = tempfile.mkdtemp()  # by default a folder here
    bridge_on_cpu.install(*(name for name in _UNUSED if find_spec(name) is None))
    from roll.utils import telemetry

    span = SimpleNamespace(start_as_current_span=lambda *_, **__: nullcontext())
    telemetry._noop_tracer_provider = SimpleNamespace(get_tracer=lambda _: span)
    from roll.platforms import current_platform

    # An index tells the device from the host, to which ROLL offloads.
    type(current_platform).current_device = staticmethod(lambda: 0)
    for name in _OF_GPUS:
        setattr(type(current_platform), name, staticmethod(lambda *_, **__: 0))
    type(current_platform).mem_get_info = staticmethod(lambda *_: (1 << 30, 1 << 30))
    torch.Tensor.pin_memory = lambda self, *_, **__: self.clone()
    for name in ("tensor", "empty"):
        setattr(torch, name, _unpinned(getattr(torch, name)))


def _unpinned(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *args, pin_memory=False, **kwargs: factory(*args, **kwargs)
