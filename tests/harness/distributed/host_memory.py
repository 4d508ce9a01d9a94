"""Two kinds of memory on the CPU, so that megatron's HybridDeviceOptimizer divides parameters between them.

The optimizer asks every parameter whether it `is_cuda`, offloads some, and keeps fp32 copies of the others. Inside
`told_apart`, all tensors say yes, except those that were sent to the host and what is computed from them. All other
code of `megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py` runs as it is. tests/gpu/test_offloaded_state.py
moves state between real memories.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from megatron.core.optimizer import optimizer_config
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from torch import Tensor


class HostTensor(torch.Tensor):
    """A tensor in host memory. So is whatever torch computes from it."""

    is_cuda = False

    def pin_memory(self, *_: Any) -> Tensor:
        return self


@contextmanager
def told_apart() -> Iterator[None]:
    with ExitStack() as patches:
        for name in ("_get_sub_optimizer_param_groups", "_move_new_state_to_right_device"):
            plain = getattr(HybridDeviceOptimizer, name)
            patches.enter_context(mock.patch.object(HybridDeviceOptimizer, name, _with_devices(plain)))
        # Without Transformer Engine there is no version that megatron could compare.
        patches.enter_context(mock.patch.object(optimizer_config, "is_te_min_version", return_value=False))
        yield


def _with_devices(plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: HybridDeviceOptimizer, *args: Any) -> Any:
        with (
            mock.patch.object(torch.Tensor, "is_cuda", True),
            mock.patch.object(torch.Tensor, "cpu", lambda tensor: tensor.clone().as_subclass(HostTensor)),
            mock.patch.object(torch.Tensor, "to", lambda tensor, _: tensor),
        ):
            return plain(self, *args)

    return call
