"""Kinds of Adam that keep their state in other dtypes or in host memory, and what they need on the CPU."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from harness.distributed import fused_adam, host_memory
from harness.trained import ADAM_EPS

NO_AMPLIFICATION: dict[str, Any] = {"adam_eps": ADAM_EPS}
_PRECISION: dict[str, Any] = NO_AMPLIFICATION | {"use_precision_aware_optimizer": True}
_OFFLOAD: dict[str, Any] = _PRECISION | {"optimizer_cpu_offload": True, "pin_cpu_grads": False}
_HALF: dict[str, Any] = _OFFLOAD | {"optimizer_offload_fraction": 0.5, "overlap_cpu_optimizer_d2h_h2d": True}


def _dtypes(moments: torch.dtype, **others: Any) -> dict[str, Any]:
    return _PRECISION | {"exp_avg_dtype": moments, "exp_avg_sq_dtype": moments} | others


KINDS: dict[str | None, dict[str, Any]] = {
    None: {},
    "remainders": _dtypes(torch.bfloat16),
    "fp16": _dtypes(torch.float16, main_params_dtype=torch.float16),
    "fp8": _dtypes(torch.uint8, store_param_remainders=False),
    "half_offloaded": _HALF,
    "half_offloaded_beside_fused": _HALF,
    "offloaded": _OFFLOAD | {"optimizer_offload_fraction": 1.0, "use_torch_optimizer_for_cpu_offload": True},
    "offloaded_alone": _OFFLOAD | {"optimizer_offload_fraction": 0.5, "use_precision_aware_optimizer": False},
}
"""Options of megatron's OptimizerConfig by name."""
_FUSED = ("remainders", "fp16", "fp8", "half_offloaded_beside_fused")


@contextmanager
def stand_ins(kind: str | None) -> Iterator[None]:
    """Let jobs in the body train with a kind of optimizer, on stand-ins for CUDA."""
    with ExitStack() as stack:
        if kind is not None:
            stack.enter_context(host_memory.told_apart())
            # HybridDeviceOptimizer stores the classes of the optimizers inside, which torch does not load by default.
            stack.enter_context(torch.serialization.safe_globals([torch.optim.AdamW, fused_adam.FusedAdam]))
        if kind in _FUSED:
            stack.enter_context(fused_adam.installed())
        yield
