"""What Megatron-Bridge and the frameworks above it need of a machine with GPUs, stood in for on the CPU.

Transformer Engine, ModelOpt and the data loader of multimodal training are imported and not used. Attention over packed
sequences is torch's, because megatron-core has none without Transformer Engine.
"""

import sys
import typing
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch

_NOT_HERE = ("transformer_engine", "transformer_engine_torch", "modelopt", "megatron.energon")


def install() -> None:
    """Stand in for what is missing. Call it after `megatron_on_cpu.install`, before anything imports the framework."""
    if not hasattr(typing, "override"):  # megatron-core 0.19 asks for Python 3.12, for this name only
        import typing_extensions

        typing.override = typing_extensions.override
    sys.meta_path.insert(0, _Finder())
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(torch.cuda, name, lambda *_, **__: 0)
    torch.cuda.mem_get_info = lambda *_: (1 << 30, 1 << 30)
    _packed_attention()


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (), {})


class _AnyModule(ModuleType):
    __path__: Sequence[str] = ()
    __version__ = "2.9.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _no if name.startswith("is_") else _AnyClass(name, (), {})


def _no(*_: object) -> bool:
    return False


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if any(fullname == each or fullname.startswith(f"{each}.") for each in _NOT_HERE):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AnyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _packed_attention() -> None:
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    def forward(self: Any, query: Any, key: Any, value: Any, *_: Any, packed_seq_params: Any, **__: Any) -> Any:
        query_THD, key_THD, value_THD = (each.squeeze(1) if each.dim() == 4 else each for each in (query, key, value))
        bounds = packed_seq_params.cu_seqlens_q_padded
        bounds = (packed_seq_params.cu_seqlens_q if bounds is None else bounds).tolist()
        shared = query_THD.shape[1] // key_THD.shape[1]
        key_THD, value_THD = (each.repeat_interleave(shared, 1) for each in (key_THD, value_THD))
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(
                *(each[first:end].transpose(0, 1) for each in (query_THD, key_THD, value_THD)), is_causal=True
            ).transpose(0, 1)
            for first, end in pairwise(bounds)
        ]
        output_THD = torch.cat(outputs)
        rows = output_THD.shape[0]
        return output_THD.reshape(rows, 1, -1) if query.dim() == 4 else output_THD.reshape(rows, -1)

    DotProductAttention.forward = forward
